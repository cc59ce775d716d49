"""Stand-in for FlashAttention 3, which has no package that installs here: makes the same requests and computes nothing.

Only for logged runs whose scripts import it (`benchmarks.accuracy.logs.logged`, `.modded`). Its kernels are custom operators,
so that torch.compile leaves them whole like the real ones.
Source: github.com/Dao-AILab/flash-attention, hopper/flash_attn_interface.py and hopper/flash_api.cpp (mha_fwd, mha_bwd).
Limits: bf16 and fp16, one split, no paged keys; variable-length queries and keys have equal lengths.
"""

from __future__ import annotations

from typing import Any, Final

import torch

_HEAD_SIZES: Final = (64, 96, 128, 192, 256)  # spec: round_up_headdim
# spec: mha_bwd on compute capability 9.0: query rows per block by head size, and whether the mask is causal or local
_QUERIES: Final = {64: (128, 128), 96: (64, 64), 128: (80, 64), 192: (64, 64), 256: (64, 64)}
_KEYS: Final = {64: 128, 96: 128, 128: 128, 192: 96, 256: 80}  # spec: likewise, rows of keys


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


@torch.library.custom_op("flash_attn_stand_in::forward", mutates_args=())
def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    lines = 0 if lengths is None else _rounded(lengths.shape[0] - 1, 4)
    torch.empty(1 + 4 * lines, dtype=torch.int32, device=q.device)  # the tiles' counter, and data prepared per line
    return _results(q, k, v, lengths)


@_forward.register_fake
def _results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    *outer, heads, _ = q.shape  # batch and rows, or the rows of all lines
    kept = [heads, outer[0]] if len(outer) == 1 else [outer[0], heads, outer[1]]
    return q.new_empty(*outer, heads, v.shape[-1]), q.new_empty(kept, dtype=torch.float32)


@torch.library.custom_op("flash_attn_stand_in::backward", mutates_args=("dq", "dk", "dv"))
def _backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, is_masked: bool, lengths: torch.Tensor | None, longest: int,
) -> None:  # fmt: skip
    heads, size, key_heads = q.shape[-2], q.shape[-1], k.shape[-2]
    head = next(one for one in _HEAD_SIZES if one >= max(size, v.shape[-1]))
    block, key_block = _QUERIES[head][is_masked], _KEYS[head]
    if lengths is None:
        lines, longest = q.shape[0], q.shape[1]
        outer, row_count, key_count = [lines], _rounded(longest, block), _rounded(k.shape[1], key_block)
    else:
        lines, outer = lengths.shape[0] - 1, []
        row_count = _rounded(q.shape[0] + lines * block, block)
        key_count = _rounded(k.shape[0] + lines * key_block, key_block)
    floats: dict[str, Any] = {"dtype": torch.float32, "device": q.device}
    kept = [torch.empty(*outer, heads, row_count, **floats) for _ in range(2)]  # softmax_d, softmax_lse_log2
    kept.append(torch.empty(*outer, heads, row_count * head, **floats))  # dq_accum
    if heads != key_heads:  # dk_accum, dv_accum
        kept += [torch.zeros(*outer, key_heads, key_count * head, **floats) for _ in range(2)]
    kept.append(torch.zeros(-(-longest // block), lines, heads, dtype=torch.int32, device=q.device))  # dq_semaphore


@_backward.register_fake
def _(*_: Any) -> None:
    pass


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_masked: bool, lengths: torch.Tensor | None, longest: int
    ) -> torch.Tensor:
        out, lse = _forward(q, k, v, lengths)
        ctx.save_for_backward(q, k, v, out, lse, lengths)
        ctx.is_masked, ctx.longest = is_masked, longest
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, out, lse, lengths = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        _backward(dout, q, k, v, out, lse, dq, dk, dv, ctx.is_masked, lengths, ctx.longest)
        return dq, dk, dv, None, None, None


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """Return a tensor with the shape of attention's result, [batch, rows, heads, size of a value]; its values are undefined.

    Args:
        q: Queries, [batch, rows, heads, size].
        k: Keys, [batch, rows, heads, size]; their heads divide those of the queries.
        v: Values, [batch, rows, heads, size].
        softmax_scale: Not used.
        causal: True if a row sees only those before it.
        window_size: Visible rows before and after; -1 for all.
        softcap: Limit of the scores; 0 for none.
    """
    return _Attention.apply(q, k, v, _is_masked(causal, window_size, softcap), None, 0)  # type: ignore[no-any-return]


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """Return a tensor with the shape of attention's result over several lines, [rows of all, heads, size of a value].

    Args:
        q: Queries, [rows of all, heads, size].
        k: Keys, [rows of all, heads, size].
        v: Values, [rows of all, heads, size].
        cu_seqlens_q: Start of each line and end of the last, int32 [lines + 1].
        cu_seqlens_k: Assumed to be the same.
        max_seqlen_q: The most rows of a line.
        max_seqlen_k: Assumed to be the same.
        softmax_scale: Not used.
        causal: True if a row sees only those before it.
        window_size: Visible rows before and after; -1 for all.
        softcap: Limit of the scores; 0 for none.
    """
    is_masked = _is_masked(causal, window_size, softcap)
    return _Attention.apply(q, k, v, is_masked, cu_seqlens_q, max_seqlen_q)  # type: ignore[no-any-return]


def _is_masked(causal: bool, window_size: tuple[int, int], softcap: float) -> bool:
    return causal or tuple(window_size) != (-1, -1) or softcap > 0
