"""FlashInfer's sampler and attention, which are not compiled: a module of a few lines stands for FlashInfer."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from vramcast.core.errors import CannotEstimate
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.libraries import flashinfer

JIT = """
class JitSpec:
    def __init__(self, name): self.name = name
    def build_and_load(self): raise RuntimeError("no nvcc")
"""


def test_only_sampler_and_attention_are_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "flashinfer" / "jit"
    folder.mkdir(parents=True)
    (folder / "core.py").write_text(JIT)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    is_capturing, launched = False, []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
    monkeypatch.setattr(torch_api, "launch_kernel", launched.append, raising=False)
    with flashinfer.not_compiled():
        spec = importlib.import_module("flashinfer.jit.core").JitSpec
        spec("sampling").build_and_load().softmax(1, 2)
        spec("sampling").build_and_load().softmax.default(1, 2)  # FlashInfer 0.3
        assert spec("batch_decode_with_kv_cache_dtype_q_f16").build_and_load().plan(1) is not None
        assert not launched
        is_capturing = True
        spec("batch_decode_with_kv_cache_dtype_q_f16").build_and_load().run(1)
        assert launched == [0]
        with pytest.raises(CannotEstimate, match="'gdn_prefill' must be compiled, and that failed here: install the CUDA"):
            spec("gdn_prefill").build_and_load()
        with pytest.raises(CannotEstimate, match="--moe-backend triton"):
            spec("fused_moe_90").build_and_load()
    with pytest.raises(RuntimeError, match="no nvcc"):
        spec("sampling").build_and_load()
    for name in ("flashinfer", "flashinfer.jit", "flashinfer.jit.core"):
        sys.modules.pop(name, None)
