"""Weights on the host, and tensors made from them: casts, copies, gradients and optimizer states of offloaded shards.

Their values have no meaning, like those of a meta model (`meta_model.py`). Large ones are allocated but never written, so their
pages take no memory on this machine, and optimizer steps over them take no time. Such *hollow* tensors are recognized by
storage, starting from the parameters and from casts and copies of a checkpoint's file:

    parameter, its .data             hollow
    tensor in a mapped file          has its values (it may be data), and takes no memory: `torch.load` maps files here
    cast or copy of one              hollow if it is large
    result computed from hollow      hollow if it is large; else drawn, because the host may read it
    parameter.grad = tensor          hollow from then on
    tensor.pin_memory()              pinned, and not copied if it is large: it goes to the card, which computes nothing
"""

from __future__ import annotations

import functools
import os
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.hooks.tensors import tensors_in
from vramcast.tracer.hooks.torch_api import DTENSOR_HERE, tree_flatten
from vramcast.tracer.program.meta_model import BIG_BYTES, HollowInit, is_big

_DATA: Final[Any] = torch.Tensor.data
_GRAD: Final[Any] = torch.Tensor.grad
_CASTS: Final = frozenset({"bfloat16", "clone", "contiguous", "double", "float", "half", "to", "type"})
_IN_ONE_THREAD: Final = "HF_DEACTIVATE_ASYNC_LOAD"  # spec: transformers, core_model_loading.py; modes belong to a thread


class HostWeights:
    """The job's host tensors whose values have no meaning."""

    def __init__(self) -> None:
        self._hollow: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._mapped: dict[int, int] = {}  # the first and the last address of each file in memory

    def passed(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Make a call that reveals no values."""
        if name == "pin_memory" or (name == "__deepcopy__" and self.holds(args[:1])):
            with HollowInit():
                result = func(*args, **kwargs)
            self._note(tree_flatten(result)[0])
            return result
        owner = getattr(func, "__self__", None)
        if (owner is _DATA or (owner is _GRAD and name == "__set__")) and self.holds(args[:1]):
            self._note(tensors_in(args))
        return func(*args, **kwargs)

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make any other call."""
        name = getattr(func, "__name__", "")
        is_hollow = not name.startswith("new_") and self.holds(tensors_in(args, kwargs))
        if not is_hollow and not (name in _CASTS and self._is_mapped(args[0])):
            return func(*args, **kwargs)
        with HollowInit(draws=True):
            result = func(*args, **kwargs)
        self._note(tree_flatten(result)[0])
        return result

    def holds(self, tensors: Iterable[Any]) -> bool:
        """Return whether one of these tensors is hollow, or a part of a hollow one."""
        found = False
        for tensor in tensors:
            held = _held(tensor)
            if held is None:
                continue
            if held.untyped_storage()._cdata in self._hollow:
                found = True
            elif isinstance(tensor, torch.nn.Parameter) and _is_large(held):
                self._note([held])
                found = True
        return found

    def _is_mapped(self, tensor: Any) -> bool:
        held = _held(tensor) if self._mapped else None
        return held is not None and any(first <= held.data_ptr() < last for first, last in self._mapped.items())

    def _note(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            held = _held(tensor)
            if held is not None and _is_large(held):
                storage = held.untyped_storage()
                key = storage._cdata
                self._hollow[key] = weakref.ref(storage, functools.partial(self._forget, key))

    def _forget(self, key: int, gone: object) -> None:
        self._hollow.pop(key, None)

    @contextmanager
    def found(self) -> Iterator[None]:
        """Note the parameters of modules made inside, and the files that checkpoints are mapped from."""
        os.environ.setdefault(_IN_ONE_THREAD, "1")
        replaced = (
            ReplacedAttribute(torch.nn.Module, "register_parameter", self._registering),
            ReplacedAttribute(torch.UntypedStorage, "from_file", self._mapping),
            ReplacedAttribute(torch, "load", _mapped),
        )
        try:
            yield
        finally:
            for place in replaced:
                place.remove()

    def _registering(self, register: Callable[..., None]) -> Callable[..., None]:
        def register_parameter(module: Any, name: Any, param: Any, *args: Any, **kwargs: Any) -> None:
            register(module, name, param, *args, **kwargs)
            self.holds([param])

        return register_parameter

    def _mapping(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def from_file(*args: Any, **kwargs: Any) -> Any:
            storage = read(*args, **kwargs)
            first = storage.data_ptr()
            self._mapped[first] = first + storage.nbytes()
            weakref.finalize(storage, self._mapped.pop, first, None)
            return storage

        return from_file


def is_made(name: str) -> bool:
    """Return whether a call makes a tensor with values of its own, such as `new_full` or `ones_like`."""
    return name.startswith("new_") or name.endswith("_like")


def _mapped(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `torch.load` that maps a file instead of reading it, where torch can."""

    def mapped(f: Any, *args: Any, **kwargs: Any) -> Any:
        is_file = kwargs.get("mmap") is None and isinstance(f, str | os.PathLike) and os.path.isfile(f)
        if is_file and os.path.getsize(f) >= BIG_BYTES and zipfile.is_zipfile(f):
            kwargs["mmap"] = True
        return load(f, *args, **kwargs)

    return mapped


def _held(tensor: Any) -> torch.Tensor | None:
    """Return the host tensor that `tensor` is or wraps; None if it is neither."""
    held = getattr(tensor, DTENSOR_HERE, tensor)  # for a DTensor
    if not isinstance(held, torch.Tensor) or held.device.type != "cpu" or held.layout != torch.strided:
        return None
    return None if hasattr(held, "__tensor_flatten__") or held.is_nested or is_lazy(held) else held


def _is_large(held: torch.Tensor) -> bool:
    return is_big(held) and held.is_floating_point()
