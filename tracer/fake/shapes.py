"""Results of meta kernels, computed once for each operator and shape: layers and steps repeat, and the kernels are Python."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracer.fake.tensor import META, InsideKernel
from vramcast.tracer.tensors import tensors_in

_Spec = tuple[torch.Size, tuple[int, ...], torch.dtype]
_NOT_KEPT = object()


class Shapes:
    """Runs operators on the meta device; what makes new tensors only, is remembered by all that it was called with."""

    def __init__(self) -> None:
        self._kept: dict[Any, list[_Spec | None] | _Spec] = {}
        self._makes_new: dict[Any, bool] = {}

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what `func` returns for tensors of these shapes: meta tensors, all of them new ones where it was kept."""
        key = self._key(func, args, kwargs)
        kept = self._kept.get(key, _NOT_KEPT) if key is not None else _NOT_KEPT
        with InsideKernel():
            if isinstance(kept, tuple):
                return _empty(kept)
            if isinstance(kept, list):
                return tuple(_empty(spec) for spec in kept)
            result = func(*args, **kwargs)
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
        """Keep a result which lies in none of the storages `given`: some operators make views and do not say so."""
        if isinstance(result, torch.Tensor):
            if (spec := _spec(result, given)) is not None:
                self._kept[key] = spec
        elif isinstance(result, tuple):
            specs = [_spec(r, given) if isinstance(r, torch.Tensor) else None for r in result]
            if all(s is not None or r is None for s, r in zip(specs, result, strict=True)):
                self._kept[key] = specs


def _described(value: Any) -> Any:
    """Return all of an argument on which shapes depend."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    return (type(value), value)


def _spec(tensor: torch.Tensor, given: set[int]) -> _Spec | None:
    """Return what makes the same tensor again; None if it is not the whole of its own storage."""
    if tensor.device != META or tensor.storage_offset() != 0 or tensor.untyped_storage()._cdata in given:
        return None
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    whole = tensor.untyped_storage().nbytes() == reach * tensor.dtype.itemsize
    return (tensor.shape, tensor.stride(), tensor.dtype) if whole else None


def _empty(spec: _Spec | None) -> torch.Tensor | None:
    return None if spec is None else torch.empty_strided(spec[0], spec[1], dtype=spec[2], device=META)
