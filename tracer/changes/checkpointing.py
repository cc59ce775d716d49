"""Gradient checkpointing in a training command: by its library's setting, by the model's own switch, or around its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

from vramcast.tracer.changes.change import Change, Facts, set_argument
from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.program.variations import recompute

_FEWEST: Final = 2  # arbitrary: blocks of one class in a row that stand for a model's layers
# spec: the switches of models of transformers, diffusers and timm
_SWITCHES: Final = ("gradient_checkpointing_enable", "enable_gradient_checkpointing", "set_grad_checkpointing")
_BLOCKS: Final = "torch.utils.checkpoint.checkpoint(block, ..., use_reentrant=False) for each block of {}"


@contextmanager
def installed(_: Any, facts: Facts) -> Iterator[None]:
    """Recompute activations of models inside, from the moment they move to the card or their optimizer is made."""
    done: set[int] = set()

    def switch_on(model: torch.nn.Module) -> None:
        if id(model) in done or "TrainingArguments" in facts.get("way", ""):
            return
        done.add(id(model))
        if way := _switched_on(model):
            facts["way"] = way
        else:
            facts["obstacle"] = f"{type(model).__name__} has neither a switch for checkpointing nor repeated blocks"

    def moves(run: Any) -> Any:
        def move(model: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            moved = run(model, *args, **kwargs)
            if model.training and any(parameter.is_cuda for parameter in model.parameters()):
                switch_on(model)
            return moved

        return move

    with ExitStack() as stack:
        set_argument(stack, "transformers", "gradient_checkpointing", lambda own: None if own else True, facts)
        for name in ("to", "cuda"):
            stack.callback(ReplacedAttribute(torch.nn.Module, name, moves).remove)
        yield


def _switched_on(model: torch.nn.Module) -> str:
    """Switch a model's checkpointing on; return the line that does it, or "" if there is none."""
    for path, module in model.named_modules():
        for name in _SWITCHES:
            if hasattr(module, name):
                getattr(module, name)()
                return f"model.{path}{'.' * bool(path)}{name}()"
    found: list[str] = []
    for path, module in model.named_modules():
        blocks = list(module.children())
        is_inside = any(path.startswith(f"{other}.") for other in found)
        if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential) and not is_inside and _are_alike(blocks):
            found.append(path)
            for block in blocks:
                recompute(block)
    return _BLOCKS.format(", ".join(found)) if found else ""


def _are_alike(blocks: list[torch.nn.Module]) -> bool:
    """Return whether modules are repeated blocks with layers of their own."""
    return len(blocks) >= _FEWEST and len(set(map(type, blocks))) == 1 and next(blocks[0].children(), None) is not None


CHANGE: Final = Change("checkpointing", installed)
