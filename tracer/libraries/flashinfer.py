"""FlashInfer's sampler and attention, which nvcc compiles on first use, replaced so that no compiler is needed.

vLLM's defaults: the attention on cards before Ampere. Their Python parts request the memory of results, workspaces and plans,
and the kernels request none, so leaving them out gives the same bytes. In a graph, a call counts as one kernel. Other modules
are compiled as usual.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from vramcast.core.errors import CannotEstimate
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import replace_when_imported
from vramcast.tracer.libraries.library import Library

_MODULE: Final = "flashinfer.jit.core"
# spec: FlashInfer 0.3 to 0.7, how the names of modules begin whose functions write into their arguments: csrc/sampling.cu,
# renorm.cu, batch_prefill.cu and batch_decode.cu. A plan is opaque to Python.
_WRITERS: Final = ("sampling", "batch_prefill_with", "batch_decode_with")
_EXPERTS: Final = "fused_moe"  # spec: the same, jit/fused_moe.py


class _Nothing:
    """A module of functions that only count as kernels of graphs; in FlashInfer 0.3 they are operators with overloads."""

    def __getattr__(self, name: str) -> _Nothing:
        return self

    def __call__(self, *args: Any) -> _Nothing:
        if torch.cuda.is_current_stream_capturing():
            torch_api.launch_kernel(0)
        return self


@contextmanager
def not_compiled() -> Iterator[None]:
    """Leave FlashInfer's sampler and attention uncompiled, inside."""
    with contextlib.ExitStack() as stack:
        replace_when_imported(stack, _MODULE, "JitSpec.build_and_load", _unless_writer)
        yield


def _unless_writer(build: Callable[..., Any]) -> Callable[..., Any]:
    def build_and_load(spec: Any, *args: Any, **kwargs: Any) -> Any:
        if spec.name.startswith(_WRITERS):
            return _Nothing()
        try:
            return build(spec, *args, **kwargs)
        except RuntimeError as error:  # no nvcc, or an incomplete toolkit
            others = "choose other kernels of experts (--moe-backend triton), or " if spec.name.startswith(_EXPERTS) else ""
            raise CannotEstimate(
                f"FlashInfer's '{spec.name}' must be compiled, and that failed here: {others}install the CUDA toolkit."
            ) from error

    return build_and_load


LIBRARY: Final = Library("flashinfer", lambda process: not_compiled())
