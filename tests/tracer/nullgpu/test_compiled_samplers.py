"""FlashInfer's sampler, which is not compiled: a module of a few lines stands for FlashInfer."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from vramcast.core.errors import CannotEstimate
from vramcast.tracer.nullgpu.child import compiled_samplers

JIT = """
class JitSpec:
    def __init__(self, name): self.name = name
    def build_and_load(self): raise RuntimeError("no nvcc")
"""


def test_only_the_sampler_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "flashinfer" / "jit"
    folder.mkdir(parents=True)
    (folder / "core.py").write_text(JIT)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with compiled_samplers.not_compiled():
        spec = importlib.import_module("flashinfer.jit.core").JitSpec
        assert spec("sampling").build_and_load().softmax(1, 2) is None
        assert spec("sampling").build_and_load().softmax.default(1, 2) is None  # FlashInfer 0.3
        with pytest.raises(CannotEstimate, match="'batch_decode' must be compiled, and that failed here: install the CUDA"):
            spec("batch_decode").build_and_load()
        with pytest.raises(CannotEstimate, match="--moe-backend triton"):
            spec("fused_moe_90").build_and_load()
    with pytest.raises(RuntimeError, match="no nvcc"):
        spec("sampling").build_and_load()
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.core"):
        sys.modules.pop(name, None)
