"""Pickling of models as by cloudpickle, without the storage of big tensors; `hollow.loads` reads it."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cloudpickle
import torch

from vramcast.core.errors import UsageError
from vramcast.tracer.program import meta_model


@dataclass
class _Storage:
    """A stand-in for one storage, so that tied weights stay tied."""

    size_bytes: int
    content: bytes | None

    @cached_property
    def built(self) -> torch.UntypedStorage:
        if not self.content:
            return torch.empty(self.size_bytes, dtype=torch.uint8).untyped_storage()
        return torch.frombuffer(bytearray(self.content), dtype=torch.uint8).untyped_storage()


def _rebuild(
    storage: _Storage, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, requires_grad: bool,
    parameter: bool,
) -> torch.Tensor:  # fmt: skip
    tensor = torch.empty(0, dtype=dtype).set_(storage.built, offset, shape, stride)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


class _Pickler(cloudpickle.Pickler):
    """A pickler like cloudpickle's (classes of __main__ and notebooks by value), with hollow tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._storages: dict[int, _Storage] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return self._reduce_tensor(obj)
        return super().reducer_override(obj)

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
            raise UsageError(
                f"A tensor of type {type(tensor).__name__} ({tensor.layout}) cannot be sent to the tracer: "
                "pass a callable that builds the model instead of the model."
            )
        shape, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
        if tensor.device.type == "meta":
            key, size_bytes = id(tensor), _span(shape, stride, int(offset)) * tensor.dtype.itemsize
        else:
            key, size_bytes = tensor.untyped_storage().data_ptr() or id(tensor), tensor.untyped_storage().nbytes()
        if key not in self._storages:
            keep = tensor.device.type == "cpu" and not meta_model.is_big(tensor) and size_bytes < meta_model.BIG_INTEGER_BYTES
            self._storages[key] = _Storage(size_bytes, _content(tensor) if keep else None)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return _rebuild, (self._storages[key], tensor.dtype, shape, stride, offset, tensor.requires_grad, is_parameter)


def _span(shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> int:
    if math.prod(shape) == 0:
        return offset
    return offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _content(tensor: torch.Tensor) -> bytes:
    # Not bytes(storage): that iterates over single elements, 10 s for a MiB.
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().tobytes()


def dumps(obj: Any) -> bytes:
    """Return `obj` (a module, a class, a function) as bytes, without the storage of big tensors.

    The object is only read: no hook is called, nothing is moved, no gradient is sent.

    Raises:
        UsageError: Part of it cannot be pickled; the message names the part and suggests a callable instead.
    """
    file = io.BytesIO()
    try:
        _Pickler(file).dump(obj)
    except UsageError:
        raise
    except Exception as error:  # pickling runs the user's own __reduce__, which may raise anything
        raise UsageError(
            f"{type(obj).__name__} cannot be sent to the tracer ({type(error).__name__}: {error}): "
            "pass a callable that builds it, for example estimate(lambda: MyModel(), batch)."
        ) from error
    return file.getvalue()
