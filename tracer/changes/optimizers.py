"""Another optimizer in place of the one that a training command constructs: fused, or with 8-bit states."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

from vramcast.tracer.changes.change import Change, Facts, set_argument
from vramcast.tracer.hooks.replacement import ReplacedAttribute

_FUSABLE: Final = ("Adam", "AdamW", "SGD", "Adagrad")
_EIGHT_BITS: Final = {"Adam": "Adam8bit", "AdamW": "AdamW8bit"}  # spec: bitsandbytes.optim
_OF_TORCH: Final = ("adamw_torch", "adamw_torch_fused")  # spec: transformers' TrainingArguments.optim


@contextmanager
def fused(_: Any, facts: Facts) -> Iterator[None]:
    """Construct optimizers with `fused=True` inside."""

    def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
            name = type(optimizer).__name__
            if kwargs.get("fused"):
                facts.setdefault("obstacle", "the optimizer is fused already")
            else:
                facts.update(way=f"{name}(..., fused=True)", obstacle="")  # AdamW calls Adam
                kwargs = {name: value for name, value in kwargs.items() if name != "foreach"} | {"fused": True}
            run(optimizer, *args, **kwargs)

        return initialize

    with ExitStack() as stack:
        set_argument(stack, "transformers", "optim", lambda own: _OF_TORCH[1] if own == _OF_TORCH[0] else None, facts)
        for name in _FUSABLE:
            stack.callback(ReplacedAttribute(getattr(torch.optim, name), "__init__", wrap).remove)
        yield


@contextmanager
def eight_bits(_: Any, facts: Facts) -> Iterator[None]:
    """Construct optimizers of bitsandbytes in place of Adam and AdamW inside."""
    with ExitStack() as stack:
        try:
            others = importlib.import_module("bitsandbytes.optim")  # the job's own package
        except ImportError:
            facts["obstacle"] = "bitsandbytes is not installed: pip install bitsandbytes"
            yield
            return
        eight = "adamw_bnb_8bit"
        set_argument(stack, "transformers", "optim", lambda own: eight if own in _OF_TORCH else None, facts)
        for name, other in _EIGHT_BITS.items():
            _replace_class(stack, getattr(torch.optim, name), getattr(others, other), facts)
        yield


def _replace_class(stack: ExitStack, own: type, other: type, facts: Facts) -> None:
    """Construct an object of another class whenever a program constructs one of this class itself.

    `__new__` decides it, so that references to the class and its subclasses stay as they are.
    """

    is_replaced = True

    def new(cls: type, /, *args: Any, **kwargs: Any) -> Any:
        if cls is not own or not is_replaced:
            return object.__new__(cls)
        facts["way"] = f"bitsandbytes.optim.{other.__name__} in place of torch.optim.{own.__name__}"
        unknown = ("fused", "foreach", "capturable", "maximize", "differentiable")
        return other(*args, **{name: value for name, value in kwargs.items() if name not in unknown})

    def end() -> None:  # spec: CPython: without the deleted `__new__`, a class takes no arguments
        nonlocal is_replaced
        is_replaced = False

    own.__new__ = new  # type: ignore[method-assign]
    stack.callback(end)


FUSED: Final = Change("fused", fused)
EIGHT_BITS: Final = Change("8-bit", eight_bits)
