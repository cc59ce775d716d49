"""Optimizer steps that DeepSpeed compiles on first use, replaced so that no compiler is needed.

Its Adam for the card needs nvcc; its Adam for the host (offloaded states) needs a C++ compiler, nvcc's version and ninja. A
machine without a GPU seldom has all of them, and the compiled code would take a minute to build and compute nothing here. The
steps change tensors in place and take no memory on the card, so leaving them out gives the same bytes. Offloaded weights keep
their values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from vramcast.tracer.hooks.replacement import ReplacedAttribute, when_imported
from vramcast.tracer.libraries.library import Forgets, Library

_MODULE: Final = "deepspeed.ops.op_builder.builder"
# spec: DeepSpeed 0.19, csrc/{adam,lion,adagrad}: extensions with functions that only change tensors in place, and these
# functions.
_ON_CARD: Final = {"fused_adam": ("multi_tensor_adam",), "fused_lion": ("multi_tensor_lion",)}
_ON_HOST: Final = {
    "cpu_adam": ("create_adam", "adam_update", "adam_rollback", "destroy_adam"),
    "cpu_lion": ("create_lion", "lion_update", "destroy_lion"),
    "cpu_adagrad": ("create_adagrad", "adagrad_update", "destroy_adagrad"),
}


@contextmanager
def not_compiled(values: Forgets | None) -> Iterator[None]:
    """Give DeepSpeed these extensions uncompiled, inside; extensions compiled in its package are used as they are.

    Args:
        values: Notified of the card tensors that a step changes; None: values are not followed.
    """
    with contextlib.ExitStack() as stack, when_imported(_MODULE, lambda: _replace(stack, values)):
        yield


def _replace(stack: contextlib.ExitStack, values: Forgets | None) -> None:
    import importlib

    builder = importlib.import_module(_MODULE).OpBuilder

    def wrap(compile_: Callable[..., Any]) -> Callable[..., Any]:
        def jit_load(op: Any, *args: Any, **kwargs: Any) -> Any:
            return stand_in(op.name, values) or compile_(op, *args, **kwargs)

        return jit_load

    stack.callback(ReplacedAttribute(builder, "jit_load", wrap).remove)


def stand_in(name: str, values: Forgets | None) -> SimpleNamespace | None:
    """Return a stand-in for an extension, or None if it is not one of these and has to be compiled."""
    if name in _ON_HOST:
        return SimpleNamespace(**dict.fromkeys(_ON_HOST[name], _nothing))
    if name not in _ON_CARD:
        return None

    def step(_chunk: int, _no_op: Any, lists: Any, *_: Any) -> None:
        if values is not None:
            for changed in lists[1:]:  # the gradients come first, and do not change
                for tensor in changed:
                    values.forget(tensor)

    return SimpleNamespace(**dict.fromkeys(_ON_CARD[name], step))


def _nothing(*_: Any) -> None: ...


LIBRARY: Final = Library("deepspeed", lambda process: not_compiled(process.values))
