"""An operator's results on CUDA as meta tensors: their shapes, and the memory that holds them.

Computed once for each operator and shape: layers and steps repeat, and meta kernels are Python.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from vramcast.tracer.hooks.memory_formats import convolution_format
from vramcast.tracer.hooks.tensors import tensors_in

aten = torch.ops.aten
META = torch.device("meta")

_Spec = tuple[torch.Size, tuple[int, ...], torch.dtype]
_NOT_KEPT = object()


class Shapes:
    """Runs operators on the meta device, and caches calls that only make new tensors by all their arguments.

    Args:
        inside: Context in which meta kernels run.
    """

    def __init__(self, inside: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._inside = inside
        self._kept: dict[Any, list[_Spec | None] | _Spec] = {}
        self._makes_new: dict[Any, bool] = {}

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of `func` for tensors of these shapes: meta tensors, all of them new if the result was cached."""
        key = self._key(func, args, kwargs)
        kept = self._kept.get(key, _NOT_KEPT) if key is not None else _NOT_KEPT
        with self._inside():
            if isinstance(kept, tuple):
                return _empty(kept)
            if isinstance(kept, list):
                return tuple(_empty(spec) for spec in kept)
            result = _RESULTS.get(func, func)(*args, **kwargs)
            if key is not None:
                self._keep(key, result, {t.untyped_storage()._cdata for t in tensors_in(args)})
            return result

    def _key(self, func: Any, args: Any, kwargs: Any) -> Any:
        new = self._makes_new.get(func)
        if new is None:
            values = [*func._schema.arguments, *func._schema.returns]
            new = self._makes_new[func] = all(v.alias_info is None for v in values)
        if not new:
            return None
        try:
            key = (func, torch.get_default_dtype(), _described(args), tuple((k, _described(v)) for k, v in kwargs.items()))
            hash(key)
        except TypeError:
            return None
        return key

    def _keep(self, key: Any, result: Any, given: set[int]) -> None:
        """Cache a result that lies in none of the storages `given`: some operators make views without declaring it."""
        if isinstance(result, torch.Tensor):
            if (spec := _spec(result, given)) is not None:
                self._kept[key] = spec
        elif isinstance(result, tuple):
            specs = [_spec(r, given) if isinstance(r, torch.Tensor) else None for r in result]
            if all(s is not None or r is None for s, r in zip(specs, result, strict=True)):
                self._kept[key] = specs


def _described(value: Any) -> Any:
    """Return the parts of an argument on which shapes depend."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    return (type(value), value)


def _spec(tensor: torch.Tensor, given: set[int]) -> _Spec | None:
    """Return the specification of an equal tensor; None if the tensor is not the whole of its own storage."""
    if tensor.device != META or tensor.storage_offset() != 0 or tensor.untyped_storage()._cdata in given:
        return None
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    whole = tensor.untyped_storage().nbytes() == reach * tensor.dtype.itemsize
    return (tensor.shape, tensor.stride(), tensor.dtype) if whole else None


def _empty(spec: _Spec | None) -> torch.Tensor | None:
    return None if spec is None else torch.empty_strided(spec[0], spec[1], dtype=spec[2], device=META)


# ------------------------------------------------------------------------------------------------ gaps in the meta kernels
def _col2im(*args: Any, **kwargs: Any) -> Any:
    """Return a result that begins with the input's size, and keeps that memory when it shrinks."""
    return _larger(aten.col2im.default(*args, **kwargs), args[0].numel())


def _loss(func: Any) -> Callable[..., Any]:
    """Return an operator whose result begins as an elementwise loss, and keeps that memory when it shrinks to one number."""
    return lambda *args, **kwargs: _larger(func(*args, **kwargs), args[0].numel())


def _larger(result: torch.Tensor, n_elements: int) -> torch.Tensor:
    """Return a meta tensor like `result` in a storage of at least `n_elements`."""
    storage = torch.empty(max(n_elements, result.numel()), dtype=result.dtype, device=META)
    return storage.as_strided(result.shape, result.stride())


def _batch_norm_backward(*args: Any, **kwargs: Any) -> Any:
    """Return gradients, the first in the layout of the input."""
    result, *others = aten.native_batch_norm_backward.default(*args, **kwargs)
    return (torch.empty_like(args[1], memory_format=torch.preserve_format) if args[-1][0] else result, *others)


def _convolution(*args: Any, **kwargs: Any) -> Any:
    """Return the result in cuDNN's layout."""
    result = aten.convolution.default(*args, **kwargs)
    return torch.empty_like(result, memory_format=convolution_format(*args[:2]))


def _convolution_backward(*args: Any, **kwargs: Any) -> Any:
    """Return the gradients in cuDNN's layout, whatever the layout of the incoming gradient."""
    _, tensor, weight = args[:3]
    wanted = args[-1]
    memory_format = convolution_format(tensor, weight)
    make = [
        torch.empty(t.shape, dtype=t.dtype, device=META, memory_format=memory_format) if flag else None
        for t, flag in zip((tensor, weight), wanted, strict=False)
    ]
    bias = torch.empty(args[0].shape[1], dtype=weight.dtype, device=META) if wanted[2] else None
    return (*make, bias)


_RESULTS: dict[Any, Callable[..., Any]] = {
    aten.col2im.default: _col2im,
    **{func: _loss(func) for func in (aten.mse_loss.default, aten.smooth_l1_loss.default, aten.binary_cross_entropy.default)},
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
