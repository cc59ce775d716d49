"""Triton's kernels on the null GPU: large ones, and fused ones that decide nothing, are compiled without their body, since no
card runs them.

Triton compiles most kernels in a second. A sort of 512 numbers, which it unrolls, takes five minutes here (masks of flex
attention need such sorts), and each of its configurations takes as long again. Without its body a kernel keeps its name and its
arguments, and is loaded and launched like any other. The losses are its number of registers, its scratch memory, and the
card's answer that its shared memory is too small. Templates of products and of attention rely on that answer, and Inductor
tries further configurations of a looped reduction by its registers, so these are compiled unchanged, as are a job's own
kernels. Nothing depends on the others of Inductor: elementwise kernels and reductions that fit in one block.
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from vramcast.tracer.hooks import torch_api

# measured: torch 2.6, lines of Triton's first IR: 26 to 240 for fused kernels, 1,007 for flex attention's gradient (1 to 3 s
# each); 2,614 and 5,162 for a sort of 512 numbers (21 and 188 s, or five minutes for a larger configuration)
_MOST_LINES: Final = 2000
_FUSED: Final = re.compile(r"tt\.func public @triton_(poi|per)_")  # spec: torch 2.6 to 2.13, Inductor's SIMDScheduling
_DECIDES: Final = ("tt.dot", "descriptor")  # a product's configuration; a tensor's descriptor lies in scratch memory
_BODY: Final = re.compile(r"(?ms)^(  tt\.func public [^\n]*\{$).*?^  \}")


@functools.cache  # once per process
def install(keeps_apart: Callable[[], bool]) -> None:
    """Let this process compile large kernels without their bodies.

    Args:
        keeps_apart: Whether kernels are now stored out of reach of real cards; otherwise they keep their bodies.
    """
    if torch_api.has("triton_backends"):  # otherwise nothing here compiles kernels
        nvidia = torch_api.triton_backends["nvidia"]
        nvidia.compiler.make_ttir = staticmethod(_barely(nvidia.compiler.make_ttir, keeps_apart))


def without_body(text: str) -> str:
    """Return the IR of a kernel without its body, if it is large or its body decides nothing; return any other unchanged."""
    decides = _FUSED.search(text) is None or any(name in text for name in _DECIDES)
    return text if decides and text.count("\n") <= _MOST_LINES else _BODY.sub(r"\1\n    tt.return\n  }", text, count=1)


def _barely(make: Callable[..., Any], keeps_apart: Callable[[], bool]) -> Callable[..., Any]:
    def make_and_strip(*args: Any) -> Any:
        made = make(*args)
        text = str(made)
        bare = without_body(text)
        if bare == text or not keeps_apart():
            return made
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bare.ttir"
            path.write_text(bare, encoding="utf-8")
            parsed = torch_api.triton_ir.parse_mlir_module(str(path), made.context)
        parsed.context = made.context  # nothing else keeps it alive
        return parsed

    return make_and_strip
