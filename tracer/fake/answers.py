"""Operators without a meta kernel, and those whose meta kernel differs from the card's."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracer.fake.readings import ANSWERS as READINGS
from vramcast.tracer.fake.readings import Answer
from vramcast.tracer.fake.recurrent import ANSWERS as RECURRENT
from vramcast.tracer.fake.tensor import META, CudaTensor

aten = torch.ops.aten


def _ctc_loss(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the losses; there is no meta kernel. Lengths on the card read as zero: the null GPU's targets are as short."""
    scores, lengths = args[0], args[3]
    if isinstance(lengths, CudaTensor):
        mode.host_reads += 1
        longest = 0
    else:
        longest = max(lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths, default=0)
    n_steps, batch = scores.shape[:2]
    return (
        torch.empty(batch, dtype=scores.dtype, device=META),
        torch.empty(batch, n_steps, 2 * longest + 1, dtype=scores.dtype, device=META),
    )


def _like_input(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a gradient like the operator's second argument, its input; there is no meta kernel."""
    return torch.empty(args[1].shape, dtype=args[1].dtype, device=META)


def _in_place(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Change tensors in place and return nothing; there is no meta kernel."""


_GROUP_ALIGNMENT_BYTES = 16  # spec: alignment of the rows of a grouped product, torch 2.11


def _grouped_mm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return one product per group of rows. The meta kernel accepts only bfloat16; the card accepts other types too."""
    first, second = args[:2]
    shape = [first.shape[-2], second.shape[-1]]
    if first.dim() == second.dim():
        offsets = args[2] if len(args) > 2 else kwargs.get("offs")
        shape.insert(0, first.shape[0] if first.dim() == 3 else offsets.shape[0])
    dtype = kwargs.get("out_dtype") or first.dtype
    aligned = _GROUP_ALIGNMENT_BYTES // dtype.itemsize
    row = -(-shape[-1] // aligned) * aligned
    return torch.empty_strided(shape, [shape[-2] * row, row, 1][-len(shape) :], dtype=dtype, device=META)


ANSWERS: dict[Any, Answer] = {
    **RECURRENT,
    **READINGS,
    **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), _ctc_loss),
    **dict.fromkeys(
        (
            aten._ctc_loss_backward.default,
            aten._ctc_loss_backward.Tensor,
            aten.multi_margin_loss_backward.default,
            aten.multilabel_margin_loss_backward.default,
        ),
        _like_input,
    ),
    **{getattr(packet, name): _in_place for packet in (aten._fused_sgd_, aten._fused_adagrad_) for name in packet.overloads()},
    aten._grouped_mm.default: _grouped_mm,
}
