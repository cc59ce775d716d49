"""Tests of the stand-ins for libraries that cannot be installed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import benchmarks.accuracy

torch: Any = pytest.importorskip("torch")

FOLDER = Path(benchmarks.accuracy.__path__[0]) / "scripts" / "stand_ins"


@pytest.mark.parametrize("key_heads", [8, 2])
def test_attention_has_shapes_of_flash_attention_3(monkeypatch: pytest.MonkeyPatch, key_heads: int) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    attention = pytest.importorskip("flash_attn_interface").flash_attn_func
    q = torch.randn(2, 100, 8, 64, requires_grad=True)
    k, v = (torch.randn(2, 100, key_heads, 64, requires_grad=True) for _ in range(2))
    out = attention(q, k, v, causal=True, window_size=(64, 0))
    assert out.shape == q.shape
    out.sum().backward()
    assert all(one.grad.shape == one.shape for one in (q, k, v))


def test_lays_lines_of_several_lengths_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    attention = pytest.importorskip("kernels").get_kernel("varunneal/flash-attention-3").flash_attn_interface
    q, k, v = (torch.randn(100, 8, 64, requires_grad=True) for _ in range(3))
    ends = torch.tensor([0, 30, 100], dtype=torch.int32)
    out = attention.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=70, max_seqlen_k=70, causal=True
    )
    assert out.shape == q.shape
    out.sum().backward()
    assert all(one.grad.shape == one.shape for one in (q, k, v))


def test_rejects_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    with pytest.raises(LookupError, match="only FlashAttention 3"):
        pytest.importorskip("kernels").get_kernel("kernels-community/activation")
