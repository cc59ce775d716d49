"""FlashInfer's sampler, which nvcc compiles on first use, replaced so that no compiler is needed.

It is vLLM's default. Its Python part requests the memory of its results, and its kernels request none, so leaving them out
gives the same bytes. Modules that return sizes (FlashInfer's plans of attention) are compiled as usual.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from vramcast.core.errors import CannotEstimate
from vramcast.tracer.hooks.replacement import replace_when_imported

_MODULE: Final = "flashinfer.jit.core"
_SAMPLER: Final = "sampling"  # spec: FlashInfer 0.6, csrc/sampling.cu and renorm.cu: functions that write into their arguments

_EXPERTS: Final = "fused_moe"  # spec: the same, jit/fused_moe.py


class _Nothing:
    """A module of functions that do nothing; in FlashInfer 0.3 they are operators with overloads."""

    def __getattr__(self, name: str) -> _Nothing:
        return self

    def __call__(self, *args: Any) -> None: ...


@contextmanager
def not_compiled() -> Iterator[None]:
    """Give FlashInfer its sampler uncompiled, inside."""
    with contextlib.ExitStack() as stack:
        replace_when_imported(stack, _MODULE, "JitSpec.build_and_load", _unless_sampler)
        yield


def _unless_sampler(build: Callable[..., Any]) -> Callable[..., Any]:
    def build_and_load(spec: Any, *args: Any, **kwargs: Any) -> Any:
        if spec.name == _SAMPLER:
            return _Nothing()
        try:
            return build(spec, *args, **kwargs)
        except RuntimeError as error:  # no nvcc, or an incomplete toolkit
            others = "choose other kernels of experts (--moe-backend triton), or " if spec.name.startswith(_EXPERTS) else ""
            raise CannotEstimate(
                f"FlashInfer's '{spec.name}' must be compiled, and that failed here: {others}install the CUDA toolkit."
            ) from error

    return build_and_load
