"""What stands in for libraries which cannot be installed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import benchmarks.accuracy

torch: Any = pytest.importorskip("torch")

FOLDER = Path(benchmarks.accuracy.__path__[0]) / "stand_ins"


@pytest.mark.parametrize("key_heads", [8, 2])
def test_attention_gives_the_shapes_of_flash_attention_3(monkeypatch: pytest.MonkeyPatch, key_heads: int) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    attention = pytest.importorskip("flash_attn_interface").flash_attn_func
    q = torch.randn(2, 100, 8, 64, requires_grad=True)
    k, v = (torch.randn(2, 100, key_heads, 64, requires_grad=True) for _ in range(2))
    out = attention(q, k, v, causal=True, window_size=(64, 0))
    assert out.shape == q.shape
    out.sum().backward()
    assert all(one.grad.shape == one.shape for one in (q, k, v))
