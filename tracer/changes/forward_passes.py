"""Changes around the forward passes of the models that a command trains: autocast, and activations saved on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

import torch

from vramcast.tracer.changes.change import Change, Facts, set_arguments
from vramcast.tracer.hooks.replacement import ReplacedAttribute

_AUTOCAST: Final = 'with torch.autocast("cuda", torch.bfloat16): around the forward pass'
_OFFLOAD: Final = "with torch.autograd.graph.save_on_cpu(pin_memory=True): around the forward pass"
_HALVES: Final = (torch.bfloat16, torch.float16)


@contextmanager
def autocast(_: Any, facts: Facts) -> Iterator[None]:
    """Run models in training under autocast inside: by a library's setting, or else around their forward passes."""

    def around(model: torch.nn.Module) -> AbstractContextManager[Any] | None:
        if facts.get("way", _AUTOCAST) != _AUTOCAST:  # a library does it
            return None
        if torch.is_autocast_enabled("cuda") or next(model.parameters()).dtype in _HALVES:
            facts["obstacle"] = "the program already runs in 16 bits"
            return None
        facts["way"] = _AUTOCAST
        return torch.autocast("cuda", torch.bfloat16)

    with ExitStack() as stack:
        settings = {
            "transformers": ("bf16", lambda own: None if own else True),
            "lightning": ("precision", lambda own: "bf16-mixed" if own in (None, 32, "32", "32-true") else None),
            "accelerate": ("mixed_precision", lambda own: "bf16" if own in (None, "no") else None),
        }
        set_arguments(stack, settings, facts)
        _enter_around_models(stack, around)
        yield


@contextmanager
def offload(_: Any, facts: Facts) -> Iterator[None]:
    """Save the activations of models in training on the host inside."""

    def around(_: torch.nn.Module) -> AbstractContextManager[Any]:
        facts["way"] = _OFFLOAD
        return torch.autograd.graph.save_on_cpu(pin_memory=True)

    with ExitStack() as stack:
        _enter_around_models(stack, around)
        yield


def _enter_around_models(stack: ExitStack, context: Callable[[torch.nn.Module], AbstractContextManager[Any] | None]) -> None:
    """Enter a context around each outermost call of a module in training, until `stack` closes."""
    depth = 0

    def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            is_outermost = not depth and module.training and torch.is_grad_enabled()
            around = context(module) if is_outermost and any(one.requires_grad for one in module.parameters()) else None
            depth += 1
            try:
                with around or ExitStack():
                    return run(module, *args, **kwargs)
            finally:
                depth -= 1

        return call

    stack.callback(ReplacedAttribute(torch.nn.Module, "__call__", wrap).remove)


AUTOCAST: Final = Change("autocast", autocast)
OFFLOAD: Final = Change("offload", offload)
