"""Weights which lie on the host, and what is made of them: gradients and optimizer states of offloaded shards.

They have no meaning, as those of a model have none which is given as such (`meta_model.py`): large ones are asked for and never
written, so their pages take no memory of this machine, and optimizers step over them in no time. What is hollow is known by
its storage, from parameters on:

    parameter, its .data             hollow
    what is computed with a hollow   hollow where it is large; else zero
    parameter.grad = tensor          hollow from then on
    tensor.pin_memory()              pinned, and not copied where it is large: it is to go to the card, which computes nothing
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
    """What of a job's host tensors has no meaning."""

    def __init__(self) -> None:
        self._hollow: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def passed(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Make a call which tells nothing of values."""
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
    """Return the large host tensor which `tensor` is, or which it is the wrapper of; None: neither."""
    held = getattr(tensor, DTENSOR_HERE, tensor)  # of a DTensor
    if not isinstance(held, torch.Tensor) or held.device.type != "cpu" or held.layout != torch.strided:
        return None
    return held if is_big(held) and held.is_floating_point() and not hasattr(held, "__tensor_flatten__") else None
