"""What a card refuses and fake tensors would take: products of unlike dtypes, and a card which is not there."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracer.hooks.tensors import tensors_in

aten = torch.ops.aten
# Their CUDA kernels take operands of one dtype; the meta kernels do not look.
_OF_ONE_DTYPE = frozenset(
    op.default for op in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.addbmm, aten.mv, aten.addmv, aten.dot, aten.vdot)
) | {aten.convolution.default, aten.cudnn_convolution.default, aten.linear.default}


def check_dtypes(func: Any, args: Any, kwargs: Any) -> None:
    """Raise as CUDA would where a product's operands are of several dtypes."""
    if func not in _OF_ONE_DTYPE:
        return
    dtypes = list(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors_in(args, kwargs)))
    if len(dtypes) > 1:
        raise RuntimeError(f"{func.name()}: all operands must have the same dtype, but got {' and '.join(dtypes)}")


def check_ordinal(device: torch.device) -> None:
    """Raise as CUDA would for another card than cuda:0, the only one."""
    if device.type == "cuda" and device.index:
        raise RuntimeError(f"CUDA error: invalid device ordinal ({device}): the job has one card, cuda:0")
