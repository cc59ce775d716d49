"""Models without weights: structure travels and is built, storage is never touched.

Memory does not depend on a weight's value, so no weight is ever computed, copied or sent. What is kept is everything that
may steer the program: small tensors and all integers.

    dumps(model) / loads(data)   a module (or callable) as bytes, big tensors as (shape, dtype, stride) only
    HollowInit()                 while active, big CPU tensors are allocated but never written: their pages stay untouched,
                                 and a 70-billion-parameter model is built in a few hundred MB
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import cloudpickle
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from vramcast.errors import UsageError

BIG_BYTES = 1 << 20  # arbitrary: a tensor from here on is all storage and no meaning
_BIG_INTEGER_BYTES = 256 << 20  # arbitrary: indices and masks keep their values up to here


def _is_big(dtype: torch.dtype, n_elements: int) -> bool:
    size = n_elements * dtype.itemsize
    return size >= (BIG_BYTES if dtype.is_floating_point or dtype.is_complex else _BIG_INTEGER_BYTES)


def _big(tensor: torch.Tensor) -> bool:
    return _is_big(tensor.dtype, tensor.numel())


class HollowInit(TorchDispatchMode):
    """While active, operators on big CPU tensors only produce shapes.

    Numbered cases, in this order:
      1. a view, or a change of the shape in place (`t_`): runs, it moves no data;
      2. a factory (`empty`, `randn`, ...): its shape is asked of the meta device; a big result is allocated, not filled;
      3. no big tensor takes part: runs for real (drop-path tables, position indices, small biases);
      4. writes into its argument (`normal_`, `copy_`, `out=`): skipped;
      5. anything else: the shape comes from the meta device, the result is allocated, not filled.
    An operator which the meta device cannot answer runs for real.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        if any(t.device.type != "cpu" for t in tensors):
            return func(*args, **kwargs)
        if not tensors:
            return self._factory(func, args, kwargs)
        # A storage-level copy (copy.deepcopy of a module) comes as raw bytes.
        raw_copy = func is torch.ops.aten.copy_.default and tensors[0].nbytes >= BIG_BYTES
        if not raw_copy and not any(_big(t) for t in tensors):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return kwargs.get("out", args[0] if args else tensors[0])
        return self._shape_only(func, args, kwargs)

    def _factory(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return func(*args, **kwargs)
        if not any(argument.name == "device" for argument in func._schema.arguments):
            return func(*args, **kwargs)
        try:
            shape = func(*args, **{**kwargs, "device": torch.device("meta"), "pin_memory": None})
        except (NotImplementedError, RuntimeError, TypeError):
            return func(*args, **kwargs)
        if not isinstance(shape, torch.Tensor) or not _big(shape):
            return func(*args, **kwargs)
        return _untouched(shape)

    @staticmethod
    def _shape_only(func: Any, args: Any, kwargs: Any) -> Any:
        def to_meta(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

        if "device" in kwargs and kwargs["device"] is not None and torch.device(kwargs["device"]).type != "cpu":
            return func(*args, **kwargs)
        try:
            meta_args, meta_kwargs = tree_map_only(torch.Tensor, to_meta, (args, kwargs))
            if kwargs.get("device") is not None:
                meta_kwargs = {**meta_kwargs, "device": torch.device("meta")}
            return tree_map_only(torch.Tensor, _untouched, func(*meta_args, **meta_kwargs))
        except (NotImplementedError, RuntimeError):
            return func(*args, **kwargs)


def _untouched(shape: torch.Tensor) -> torch.Tensor:
    """A CPU tensor like `shape`: big ones untouched, small ones zero (they came from values which nobody has)."""
    out = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype, device="cpu")
    return out if _big(out) else out.zero_()


# ------------------------------------------------------------------------------------------------ pickling
class _Storage:
    """Stands for one storage, so that tied weights stay tied."""

    def __init__(self, size_bytes: int, content: bytes | None) -> None:
        self.size_bytes = size_bytes
        self.content = content
        self._built: torch.UntypedStorage | None = None

    def __getstate__(self) -> tuple[int, bytes | None]:
        return self.size_bytes, self.content

    def __setstate__(self, state: tuple[int, bytes | None]) -> None:
        self.size_bytes, self.content = state
        self._built = None

    def build(self) -> torch.UntypedStorage:
        if self._built is None:
            if self.content is None:
                self._built = torch.empty(self.size_bytes, dtype=torch.uint8).untyped_storage()
            else:
                data = (
                    torch.frombuffer(bytearray(self.content), dtype=torch.uint8)
                    if self.content
                    else torch.empty(0, dtype=torch.uint8)
                )
                self._built = data.untyped_storage()
        return self._built


def _rebuild(
    storage: _Storage, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, requires_grad: bool,
    parameter: bool,
) -> torch.Tensor:  # fmt: skip
    tensor = torch.empty(0, dtype=dtype).set_(storage.build(), offset, shape, stride)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


class _Pickler(cloudpickle.Pickler):
    """Pickles everything as cloudpickle does (classes of __main__ and notebooks by value), tensors hollow."""

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
                "pass a callable which builds the model instead of the model."
            )
        shape, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
        if tensor.device.type == "meta":
            key, size_bytes = id(tensor), _span(shape, stride, int(offset)) * tensor.dtype.itemsize
        else:
            key, size_bytes = tensor.untyped_storage().data_ptr() or id(tensor), tensor.untyped_storage().nbytes()
        if key not in self._storages:
            keep = tensor.device.type == "cpu" and not _big(tensor) and size_bytes < _BIG_INTEGER_BYTES
            self._storages[key] = _Storage(size_bytes, _content(tensor) if keep else None)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return _rebuild, (self._storages[key], tensor.dtype, shape, stride, offset, tensor.requires_grad, is_parameter)


def _span(shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> int:
    if math.prod(shape) == 0:
        return offset
    return offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _content(tensor: torch.Tensor) -> bytes:
    # Not bytes(storage): that walks over single elements, 10 s for a MiB.
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().tobytes()


def dumps(obj: Any) -> bytes:
    """Return `obj` (a module, a class, a function) as bytes, with the storage of big tensors left out.

    The object is only read: no hook is called, nothing is moved, no gradient is sent.

    Raises:
        UsageError: something in it cannot be pickled; the message says what, and to pass a callable instead.
    """
    file = io.BytesIO()
    try:
        _Pickler(file).dump(obj)
    except UsageError:
        raise
    except Exception as error:  # pickling runs the user's own __reduce__: anything may come out of it
        raise UsageError(
            f"{type(obj).__name__} cannot be sent to the tracer ({type(error).__name__}: {error}): "
            "pass a callable which builds it, for example estimate(lambda: MyModel(), batch)."
        ) from error
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Return what `dumps` wrote. Only for bytes from our own parent process: unpickling runs code."""
    return pickle.loads(data)
