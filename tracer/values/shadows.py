"""Host copies of what small tensors of the card hold, kept by storage, so that views of one tensor stay one.

    card:  storage 800 B <- ids (10 x 10 int64) <- ids[0], ids.T
    host:  the same 800 B, the same views over them

A shadow is good while the tensor's version is the one which was noted: PyTorch raises it at every change in place, so what
somebody else wrote on the card makes the value unknown, never wrong.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

MAX_ELEMENTS = 1 << 20  # arbitrary: above this nothing is followed; 8 MiB of token ids


@dataclass(slots=True)
class Shadow:
    """The bytes of one storage. `drawn`: they are a guess, or were made of one."""

    storage: torch.UntypedStorage
    version: int
    drawn: bool


def followed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is small enough to be followed."""
    return tensor.layout == torch.strided and tensor.numel() <= MAX_ELEMENTS


class Shadows:
    """All shadows of one job; each goes when its storage goes."""

    def __init__(self) -> None:
        self._by_storage: dict[int, tuple[Shadow, weakref.ref[torch.UntypedStorage]]] = {}

    def find(self, tensor: torch.Tensor) -> Shadow | None:
        """Return the shadow under `tensor`, if what it holds is known."""
        entry = self._by_storage.get(tensor.untyped_storage()._cdata)
        return entry[0] if entry is not None and _version(tensor) == entry[0].version else None

    @staticmethod
    def view(shadow: Shadow, tensor: torch.Tensor) -> torch.Tensor:
        """Return the host tensor which lies over `shadow` as `tensor` lies over its own storage."""
        seen = torch.empty(0, dtype=tensor.dtype)
        return seen.set_(shadow.storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def keep(self, tensor: torch.Tensor, value: torch.Tensor, *, drawn: bool) -> None:
        """Note that `tensor` holds what the host tensor `value` holds; nothing is noted of a part of an unknown storage."""
        if value.shape != tensor.shape or value.dtype != tensor.dtype or not followed(tensor):
            return
        storage = tensor.untyped_storage()
        shadow = self.find(tensor)
        if shadow is None and storage.nbytes() != tensor.nbytes:
            return
        if shadow is None:
            shadow = Shadow(torch.UntypedStorage(storage.nbytes()), _version(tensor), drawn)
            key = storage._cdata
            gone = weakref.ref(storage, lambda _: self._by_storage.pop(key, None))
            self._by_storage[key] = (shadow, gone)
        seen = self.view(shadow, tensor)
        if seen.data_ptr() != value.data_ptr():
            seen.copy_(value)
        shadow.drawn |= drawn

    def changed(self, tensor: torch.Tensor) -> None:
        """Note that the change in place which just happened to `tensor` happened to its shadow too."""
        entry = self._by_storage.get(tensor.untyped_storage()._cdata)
        if entry is not None:
            entry[0].version = _version(tensor)


def _version(tensor: torch.Tensor) -> int:
    """Return how often the tensor was changed; PyTorch does not count for inference tensors, whose values rarely change."""
    return -1 if tensor.is_inference() else tensor._version
