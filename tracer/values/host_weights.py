"""Weights on the host, and tensors made from them: gradients and optimizer states of offloaded shards.

Their values have no meaning, like those of a meta model (`meta_model.py`). Large ones are allocated but never written, so their
pages take no memory on this machine, and optimizer steps over them take no time. Such *hollow* tensors are recognized by
storage, starting from the parameters:

    parameter, its .data             hollow
    result computed from hollow      hollow if it is large; else zero
    parameter.grad = tensor          hollow from then on
    tensor.pin_memory()              pinned, and not copied if it is large: it goes to the card, which computes nothing
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from vramcast.tracer.hooks.tensors import tensors_in
from vramcast.tracer.hooks.torch_api import DTENSOR_HERE, tree_flatten
from vramcast.tracer.program.meta_model import HollowInit, is_big

_DATA: Final[Any] = torch.Tensor.data
_GRAD: Final[Any] = torch.Tensor.grad
_COPIED: Final = ("pin_memory", "__deepcopy__")


class HostWeights:
    """The job's host tensors whose values have no meaning."""

    def __init__(self) -> None:
        self._hollow: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def passed(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Make a call that reveals no values."""
        if name in _COPIED:
            with HollowInit():
                result = func(*args, **kwargs)
            if self._among(args[:1]):
                self._note(tree_flatten(result)[0])
            return result
        owner = getattr(func, "__self__", None)
        if (owner is _DATA or (owner is _GRAD and name == "__set__")) and self._among(args[:1]):
            self._note(tensors_in(args))
        return func(*args, **kwargs)

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make any other call."""
        if not self._among(tensors_in(args, kwargs)):
            return func(*args, **kwargs)
        with HollowInit():
            result = func(*args, **kwargs)
        self._note(tree_flatten(result)[0])
        return result

    def _among(self, tensors: Iterable[Any]) -> bool:
        found = False
        for tensor in tensors:
            held = _held(tensor)
            if held is None:
                continue
            storage = held.untyped_storage()
            if storage._cdata in self._hollow:
                found = True
            elif isinstance(tensor, torch.nn.Parameter):
                self._note([held])
                found = True
        return found

    def _note(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            held = _held(tensor)
            if held is not None:
                storage = held.untyped_storage()
                key = storage._cdata
                self._hollow[key] = weakref.ref(storage, functools.partial(self._forget, key))

    def _forget(self, key: int, gone: object) -> None:
        self._hollow.pop(key, None)


def _held(tensor: Any) -> torch.Tensor | None:
    """Return the large host tensor that `tensor` is or wraps; None if it is neither."""
    held = getattr(tensor, DTENSOR_HERE, tensor)  # for a DTensor
    if not isinstance(held, torch.Tensor) or held.device.type != "cpu" or held.layout != torch.strided:
        return None
    return held if is_big(held) and held.is_floating_point() and not hasattr(held, "__tensor_flatten__") else None
