"""Triton's kernels on the null GPU: one which is large is compiled without its body, since no card runs it.

Triton compiles most kernels in a second. A sort of 512 numbers, which it unrolls, takes it five minutes here (masks of flex
attention ask for such ones), and each of its configurations as long again. Without its body a kernel keeps its name and its
arguments, and is loaded and launched like any other. What is lost is the card's answer that its shared memory does not suffice,
for which small kernels, templates of products and of attention among them, are compiled as they are.
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from vramcast.tracer.hooks import torch_api

# measured: torch 2.6, lines of Triton's first IR: 26 to 240 of fused kernels, 1,007 of flex attention's gradient (1 to 3 s
# each); 2,614 and 5,162 of a sort of 512 numbers (21 and 188 s, or five minutes where a configuration is larger)
_MOST_LINES: Final = 2000
_BODY: Final = re.compile(r"(?ms)^(  tt\.func public [^\n]*\{$).*?^  \}")


@functools.cache  # once a process
def install(keeps_apart: Callable[[], bool]) -> None:
    """Let this process compile large kernels without their bodies.

    Args:
        keeps_apart: Whether kernels are kept now where no real card finds them; else they keep their bodies.
    """
    if torch_api.has("triton_backends"):  # else nothing here compiles kernels
        nvidia = torch_api.triton_backends["nvidia"]
        nvidia.compiler.make_ttir = staticmethod(_barely(nvidia.compiler.make_ttir, keeps_apart))


def without_body(text: str) -> str:
    """Return a kernel's IR without what it does, if it is a large one; else the same text."""
    return _BODY.sub(r"\1\n    tt.return\n  }", text, count=1) if text.count("\n") > _MOST_LINES else text


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
        parsed.context = made.context  # nobody else keeps it
        return parsed

    return make_and_strip
