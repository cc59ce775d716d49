"""Attention of tensors without a batch dimension, for which torch has fused kernels since 2.14, as another release computes it.

Before 2.14 three dimensions choose the kernel that writes all scores. torch's decision is compiled in, so the operator gets a
kernel that takes the other path.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracer.hooks.torch_api import DispatchKey
from vramcast.tracer.nullgpu.child import kernels


def register(*, fused: bool) -> torch.library.Library:
    """Register the kernel; it lasts as long as the returned library.

    Args:
        fused: Whether the release has fused kernels for three dimensions.
    """
    return kernels.register({"scaled_dot_product_attention": _fused if fused else _unfused}, "CUDA", "AutogradCUDA")


def _unfused(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    if _are_unbatched(query, key, value):
        return torch.ops.aten._scaled_dot_product_attention_math.default(query, key, value, *args, **kwargs)[0]
    return _own(query, key, value, *args, **kwargs)


def _fused(query: Any, key: Any, value: Any, mask: Any = None, *args: Any, **kwargs: Any) -> Any:
    if not _are_unbatched(query, key, value):
        return _own(query, key, value, mask, *args, **kwargs)
    wide = mask.unsqueeze(0) if mask is not None and mask.dim() == query.dim() else mask
    batch = (tensor.unsqueeze(0) for tensor in (query, key, value))
    return _own(*batch, wide, *args, **kwargs).squeeze(0)


def _are_unbatched(*tensors: Any) -> bool:
    return all(tensor.dim() == 3 and not tensor.is_nested for tensor in tensors)


def _own(*args: Any, **kwargs: Any) -> Any:
    """Make torch's own call."""
    operator = torch.ops.aten.scaled_dot_product_attention.default
    return operator._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
