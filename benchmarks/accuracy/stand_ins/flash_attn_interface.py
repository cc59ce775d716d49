"""Stands in for FlashAttention 3, which has no package that installs here: asks for the memory it asks for, computes nothing.

Only for logged runs whose scripts import it (`benchmarks.accuracy.logged`). Its kernels are operators of their own, so that
torch.compile leaves them whole, as the real ones are.
Source: github.com/Dao-AILab/flash-attention, hopper/flash_attn_interface.py and hopper/flash_api.cpp (mha_fwd, mha_bwd).
Limits: bf16 and fp16, no variable lengths, one split, no paged keys.
"""

from __future__ import annotations

from typing import Any, Final

import torch

_HEAD_SIZES: Final = (64, 96, 128, 192, 256)  # spec: round_up_headdim
# spec: mha_bwd on compute capability 9.0: rows of queries a block by the head size, and where the mask is causal or local
_QUERIES: Final = {64: (128, 128), 96: (64, 64), 128: (80, 64), 192: (64, 64), 256: (64, 64)}
_KEYS: Final = {64: 128, 96: 128, 128: 128, 192: 96, 256: 80}  # spec: likewise, rows of keys


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


@torch.library.custom_op("flash_attn_stand_in::forward", mutates_args=())
def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch.empty(1, dtype=torch.int32, device=q.device)  # the tiles' counter
    return _results(q, k, v)


@_forward.register_fake
def _results(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    batch, rows, heads, _ = q.shape
    return q.new_empty(batch, rows, heads, v.shape[-1]), q.new_empty(batch, heads, rows, dtype=torch.float32)


@torch.library.custom_op("flash_attn_stand_in::backward", mutates_args=("dq", "dk", "dv"))
def _backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, is_masked: bool,
) -> None:  # fmt: skip
    batch, rows, heads, size = q.shape
    key_rows, key_heads = k.shape[1], k.shape[2]
    head = next(one for one in _HEAD_SIZES if one >= max(size, v.shape[-1]))
    block = _QUERIES[head][is_masked]
    row_count = _rounded(rows, block)
    floats: dict[str, Any] = {"dtype": torch.float32, "device": q.device}
    kept = [torch.empty(batch, heads, row_count, **floats) for _ in range(2)]  # softmax_d, softmax_lse_log2
    kept.append(torch.empty(batch, heads, row_count * head, **floats))  # dq_accum
    if heads != key_heads:  # dk_accum, dv_accum
        key_count = _rounded(key_rows, _KEYS[head])
        kept += [torch.zeros(batch, key_heads, key_count * head, **floats) for _ in range(2)]
    kept.append(torch.zeros(-(-rows // block), batch, heads, dtype=torch.int32, device=q.device))  # dq_semaphore


@_backward.register_fake
def _(*_: Any) -> None:
    pass


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_masked: bool) -> torch.Tensor:
        out, lse = _forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.is_masked = is_masked
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        _backward(dout, q, k, v, out, lse, dq, dk, dv, ctx.is_masked)
        return dq, dk, dv, None


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """Return a tensor with the shape of attention's result, [batch, rows, heads, size of a value]; its values are unknown.

    Args:
        q: Queries, [batch, rows, heads, size].
        k: Keys, [batch, rows, heads, size]; their heads divide those of the queries.
        v: Values, [batch, rows, heads, size].
        softmax_scale: Is not used.
        causal: Whether a row sees only those before it.
        window_size: Rows before and after which are seen; -1: all.
        softcap: Limit of the scores; 0: none.
    """
    return _Attention.apply(q, k, v, causal or tuple(window_size) != (-1, -1) or softcap > 0)  # type: ignore[no-any-return]
