"""Models without weights: their structure is transferred and built, their storage is never touched.

Memory does not depend on a weight's value, so no weight is computed, copied or sent. Values that may steer the program are
kept: small tensors and all integers.

    hollow_pickle.dumps(model)   a module (or callable) as bytes, big tensors only as (shape, dtype, stride)
    loads(data)                  builds it again, without cloudpickle: a machine that only measures does not need it
    HollowInit()                 while active, big CPU tensors are allocated but never written: their pages stay untouched,
                                 and a 70-billion-parameter model is built in a few hundred MB
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from vramcast.tracer.hooks.tensors import tensors_in
from vramcast.tracer.hooks.torch_api import TorchDispatchMode, tree_map_only

BIG_BYTES = 1 << 20  # arbitrary: the values of a tensor from this size on have no meaning
BIG_INTEGER_BYTES = 256 << 20  # arbitrary: indices and masks keep their values up to this size


_EMPTY = torch.ops.aten.empty.memory_format  # fills nothing
_DRAWING = tuple(getattr(torch.ops.aten, name) for name in ("uniform_", "normal_", "random_", "bernoulli_", "exponential_"))
_DRAWN_AT_ONCE = 1 << 18  # arbitrary: elements; a multiple of 16, because `normal_` draws for 16 at a time


def _is_big(dtype: torch.dtype, n_elements: int) -> bool:
    size = n_elements * dtype.itemsize
    return size >= (BIG_BYTES if dtype.is_floating_point or dtype.is_complex else BIG_INTEGER_BYTES)


def is_big(tensor: torch.Tensor) -> bool:
    """Return whether the values of `tensor` have no meaning, only its storage."""
    return _is_big(tensor.dtype, tensor.numel())


class HollowInit(TorchDispatchMode):
    """A mode in which operators on big CPU tensors produce only shapes.

    Numbered cases, in this order:
      1. a view, or an in-place change of the shape (`t_`): runs, because it moves no data;
      2. a factory (`empty`, `randn`, ...): its shape comes from the meta device; a big result is allocated, not filled;
      3. no big tensor takes part: runs for real (drop-path tables, position indices, small biases);
      4. writes into its argument (`normal_`, `copy_`, `out=`): skipped, but for its random numbers if they are to be drawn;
      5. anything else: the shape comes from the meta device, the result is allocated, not filled.
    An operator that the meta device does not support runs for real.

    Args:
        draws: Whether initializers draw as many random numbers as on a card's machine, so that later ones are the same.
    """

    def __init__(self, *, draws: bool = False) -> None:
        super().__init__()
        self._draws = draws

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper (DTensor) calls again with its inner tensors
        if types:  # a tensor without values: PyTorch tries out shapes
            return func(*args, **kwargs)
        if func.is_view or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        tensors = tensors_in(*args, *kwargs.values())
        if any(t.device.type != "cpu" for t in tensors):
            return func(*args, **kwargs)
        if not tensors:
            return self._factory(func, args, kwargs)
        # A storage-level copy (copy.deepcopy of a module) appears as raw bytes.
        raw_copy = func is torch.ops.aten.copy_.default and tensors[0].nbytes >= BIG_BYTES
        if not raw_copy and not any(is_big(t) for t in tensors):
            return func(*args, **kwargs)
        if func is torch.ops.aten._pin_memory.default:
            return torch.empty_strided(tensors[0].shape, tensors[0].stride(), dtype=tensors[0].dtype, pin_memory=True)
        if func._schema.is_mutable:
            if self._draws and func.overloadpacket in _DRAWING:
                _draw(func, tensors[0], args[1:], kwargs)
            if not func._schema.returns:
                return None
            return kwargs.get("out", args[0] if args else tensors[0])
        return self._shape_only(func, args, kwargs)

    def _factory(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = kwargs.get("device")
        if (device is not None and torch.device(device).type != "cpu") or (func is _EMPTY and not kwargs.get("pin_memory")):
            return func(*args, **kwargs)
        if not any(argument.name == "device" for argument in func._schema.arguments):
            return func(*args, **kwargs)
        try:
            shape = func(*args, **{**kwargs, "device": torch.device("meta"), "pin_memory": None})
        except (NotImplementedError, RuntimeError, TypeError):
            return func(*args, **kwargs)
        if not isinstance(shape, torch.Tensor) or not is_big(shape):
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


def _draw(func: Any, tensor: torch.Tensor, args: Any, kwargs: Any) -> None:
    """Draw the random numbers of an initializer of a tensor, and drop them."""
    left = tensor.numel()
    scratch = torch.empty(_DRAWN_AT_ONCE + 16, dtype=tensor.dtype)
    while left:
        count = left if left < len(scratch) else _DRAWN_AT_ONCE
        func(scratch[:count], *args, **kwargs)
        left -= count


def _untouched(shape: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor like `shape`: a big one untouched, a small one zero (it was computed from unknown values)."""
    out = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype, device="cpu")
    return out if is_big(out) else out.zero_()


def loads(data: bytes) -> Any:
    """Return the object pickled by `hollow_pickle.dumps`. Only for bytes from our own parent process: unpickling runs code."""
    return pickle.loads(data)
