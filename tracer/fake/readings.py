"""Operators that read a value from the card to the host: single numbers, copies, and sizes of selections.

Known values come from `tracer/values`; the rest reads as zero, False or an empty result, as on the null GPU, and counts as
a host read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.tracer.fake.tensor import META, CudaTensor, InsideKernel
from vramcast.tracer.values.host_reads import SINCE_2_15, rows

aten = torch.ops.aten
Answer = Callable[[Any, Any, Any, Any], Any]

_COUNT_BYTES, _LONG_BYTES = 4, 8  # measured: sizes that CUDA's selections read, null GPU, torch 2.11


def _number(mode: Any, size_bytes: int) -> int:
    """Return a whole number read from the card; 0 if it is unknown."""
    known = mode.known.take(size_bytes)
    if known is None:
        mode.host_reads += 1
        return 0
    return int.from_bytes(known, "little", signed=True)


def _to_copy(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    source = args[0]
    device = kwargs.get("device")
    dtype = kwargs.get("dtype") or source.dtype
    memory_format = kwargs.get("memory_format") or torch.preserve_format
    if device is not None and device.type == "cpu":
        with InsideKernel():
            shape = torch.empty_like(source, dtype=dtype, memory_format=memory_format)
        return _read(mode, torch.empty_strided(shape.shape, shape.stride(), dtype=dtype, device="cpu"))
    with InsideKernel():
        return torch.empty_like(source, dtype=dtype, device=META, memory_format=memory_format)


def _copy_(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0] if isinstance(args[0], CudaTensor) else _read(mode, args[0])


def _read(mode: Any, target: torch.Tensor) -> torch.Tensor:
    """Fill a host tensor with values read from the card: zeros; tracers of values write the known ones afterwards."""
    if target.nbytes and mode.known.take(target.nbytes) is None:
        mode.host_reads += 1
    return target.zero_()


def _read_scalar(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    dtype = args[0].dtype
    known = mode.known.take(dtype.itemsize)
    if known is None:
        mode.host_reads += 1
        return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0j if dtype.is_complex else 0
    return torch.frombuffer(bytearray(known), dtype=dtype)[0].item()


def _equal(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0].shape == args[1].shape and bool(_number(mode, 1))


def _nonzero(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    found = _number(mode, _COUNT_BYTES)
    return torch.empty_strided((found, args[0].dim()), (1, max(found, 1)), dtype=torch.int64, device=META)


def _masked_select(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return torch.empty(_number(mode, _COUNT_BYTES), dtype=args[0].dtype, device=META)


def _index(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result; a mask becomes lists of indices, one per dimension, as long as its selection."""
    if len(args) > 2 and _is_number(args[2]) and not (args[3] if len(args) > 3 else kwargs.get("accumulate")):
        return args[0]
    indices: list[Any] = []
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            indices += [torch.empty(_number(mode, _COUNT_BYTES), dtype=torch.int64, device=META)] * index.dim()
        else:
            indices.append(index)
    if len(indices) == len(args[1]) and all(a is b for a, b in zip(indices, args[1], strict=True)):
        return NotImplemented
    with InsideKernel():
        return func(args[0], indices, *args[2:], **kwargs)


def _is_number(value: torch.Tensor) -> bool:
    return value.numel() == 1 and not isinstance(value, CudaTensor)


def _unique(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return (distinct elements, position of each input element among them, count of each)."""
    found, source = _number(mode, _LONG_BYTES), args[0]
    flags = [*args[1:], *kwargs.values()]
    inverse, counts = (len(flags) > i and flags[i] for i in ((1, 2) if func is aten._unique2.default else (0, 1)))
    return (
        torch.empty(found, dtype=source.dtype, device=META),
        torch.empty(source.shape if inverse else 0, dtype=torch.int64, device=META),
        torch.empty(found if counts else 0, dtype=torch.int64, device=META),
    )


def _unique_dim(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    found, source, at = _number(mode, len(rows(0))), args[0], args[1]
    shape = list(source.shape)
    shape[at] = found
    return (
        torch.empty(shape, dtype=source.dtype, device=META),
        torch.empty(source.shape[at], dtype=torch.int64, device=META),
        torch.empty(found, dtype=torch.int64, device=META),
    )


def _repeat_interleave(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    given = kwargs.get("output_size")
    repeated = given if given is not None else _number(mode, _LONG_BYTES)
    if given is None:
        mode.known.take(args[0].dtype.itemsize if SINCE_2_15 else 1)  # the check that none is negative
    return torch.empty(repeated, dtype=args[0].dtype, device=META)


def _bincount(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    size_bytes = args[0].dtype.itemsize
    _number(mode, size_bytes)  # the smallest
    n = max(_number(mode, size_bytes) + 1, least)
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    return torch.empty(n, dtype=dtype, device=META)


def _nms(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return torch.empty(_number(mode, _COUNT_BYTES), dtype=torch.int64, device=META)


ANSWERS: dict[Any, Answer] = {
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy_,
    aten._local_scalar_dense.default: _read_scalar,
    aten.equal.default: _equal,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten.index_put_.default: _index,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.unique_dim.default: _unique_dim,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    aten.bincount.default: _bincount,
}
# By name, because torchvision's own library may be missing.
NAMED: dict[str, Answer] = {"torchvision::nms": _nms}
