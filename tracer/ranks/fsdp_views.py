"""FSDP2 cuts each parameter into a view for every rank of the world, of which it keeps one.

The profiler would write three events for each view, of some 2.5 KB: 2.2 GiB for Llama-3 8B over 1,024 ranks. Views ask for no
memory, so nothing is lost when these are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.import_hooks import when_imported
from vramcast.tracer.hooks.replacement import Replaced


@contextmanager
def unprofiled() -> Iterator[None]:
    """Leave the views out of every profile inside."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(when_imported(torch_api.FSDP2_SHARDS, lambda: _replace(stack)))
        yield


def _replace(stack: contextlib.ExitStack) -> None:
    for owner, name in torch_api.places("cut_into_shards"):
        stack.callback(Replaced(owner, name, _quiet).remove)


def _quiet(cut: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        torch_api.enable_record_function(False)
        try:
            return cut(*args, **kwargs)
        finally:
            torch_api.enable_record_function(True)

    return call
