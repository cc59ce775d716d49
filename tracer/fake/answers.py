"""Operators whose meta kernel is missing, or answers another question than the card would.

Values are zeros here, as on the null GPU: what the host reads is 0, False, or nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.tracer.fake.convolutions import convolution_format
from vramcast.tracer.fake.reductions import merged
from vramcast.tracer.fake.tensor import META, CudaTensor, InsideKernel

aten = torch.ops.aten


def _to_copy(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    source = args[0]
    device = kwargs.get("device")
    dtype = kwargs.get("dtype") or source.dtype
    memory_format = kwargs.get("memory_format") or torch.preserve_format
    if device is not None and device.type == "cpu":
        mode.host_reads += 1
        with InsideKernel():
            shape = torch.empty_like(source, dtype=dtype, memory_format=memory_format)
        out = torch.empty_strided(shape.shape, shape.stride(), dtype=dtype, device="cpu")
        return out.zero_()
    with InsideKernel():
        return torch.empty_like(source, dtype=dtype, device=META, memory_format=memory_format)


def _copy_(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    target = args[0]
    if isinstance(target, CudaTensor):
        return target
    mode.host_reads += 1
    return target.zero_()


def _read_scalar(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    mode.host_reads += 1
    dtype = args[0].dtype
    return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0j if dtype.is_complex else 0


# measured: torch 2.11 and 2.13, for a gradient which autograd alone holds, seen from the dispatch mode.
_OWN_TENSOR, _OWN_STORAGE = 4, 2


def _add(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Autograd adds a second gradient into the first where nobody else holds that, and attention its mask to the scores.

    For a subclass of Tensor PyTorch makes a new tensor in both cases.
    """
    first = args[0]
    if mode.masking:
        with InsideKernel():
            return first.detach()
    if torch._C._current_autograd_node() is None or torch.is_grad_enabled() or not isinstance(args[1], CudaTensor):
        return NotImplemented
    storage = first.untyped_storage()
    alone = first._use_count() <= _OWN_TENSOR and torch._C._storage_Use_Count(storage._cdata) <= _OWN_STORAGE
    same = first.shape == args[1].shape and first.dtype == args[1].dtype
    lies_as_one = [stride for _, stride in merged(list(zip(first.shape, first.stride(), strict=True)))] in ([], [1])
    if not (alone and same and lies_as_one):
        return NotImplemented
    with InsideKernel():
        return first.detach()


def _scatter(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Autograd writes these gradients into zeros in place; for a subclass it makes a new tensor."""
    if torch._C._current_autograd_node() is None or torch.is_grad_enabled():
        return NotImplemented
    with InsideKernel():
        return args[0].detach()


def _nonzero(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    mode.host_reads += 1
    return torch.empty(0, args[0].dim(), dtype=torch.int64, device=META)


def _masked_select(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    mode.host_reads += 1
    return torch.empty(0, dtype=args[0].dtype, device=META)


def _index(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A mask selects nothing: it becomes empty lists of indices, one a dimension."""
    indices: list[Any] = []
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            mode.host_reads += 1
            indices += [torch.empty(0, dtype=torch.int64, device=META)] * index.dim()
        else:
            indices.append(index)
    if len(indices) == len(args[1]) and all(a is b for a, b in zip(indices, args[1], strict=True)):
        return NotImplemented
    with InsideKernel():
        return func(args[0], indices, *args[2:], **kwargs)


def _unique(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    mode.host_reads += 1
    empty = torch.empty(0, dtype=args[0].dtype, device=META)
    return empty, torch.empty(args[0].shape, dtype=torch.int64, device=META), torch.empty(0, dtype=torch.int64, device=META)


def _convolution_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradients lie as cuDNN makes them, whatever the incoming gradient lies like."""
    _, tensor, weight = args[:3]
    wanted = args[-1]
    memory_format = convolution_format(tensor, weight)
    make = [
        torch.empty(t.shape, dtype=t.dtype, device=META, memory_format=memory_format) if flag else None
        for t, flag in zip((tensor, weight), wanted, strict=False)
    ]
    bias = torch.empty(args[0].shape[1], dtype=weight.dtype, device=META) if wanted[2] else None
    return (*make, bias)


Answer = Callable[[Any, Any, Any, Any], Any]
ANSWERS: dict[Any, Answer] = {
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy_,
    aten.add.Tensor: _add,
    **dict.fromkeys((aten.scatter_add.default, aten.scatter.src, aten.index_add.default, aten.index_put.default), _scatter),
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten.index_put_.default: _index,
    aten._unique2.default: _unique,
    aten.convolution_backward.default: _convolution_backward,
    aten._local_scalar_dense.default: _read_scalar,
}
