"""The contents of a job's tensors, as far as they are known, drawn, or can be worked out on the host.

Host copies of card tensors are attributes of their storages, so that views of one tensor stay views, and go with the storage:

    card:  storage 800 B <- ids (10 x 10 int64) <- ids[0], ids.T
    host:  the same 800 B, the same views over them             a shadow: small, and worked out at once
       or  the derivations of ids, ids[0] and ids.T             recipes: for large values and those that depend on unknown ones

Both are valid while the tensor has the recorded version. PyTorch raises the version at every in-place change, so other writes
on the card make the value unknown, never wrong.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from vramcast.tracer.hooks.tensors import TENSORS
from vramcast.tracer.program.meta_model import BIG_BYTES
from vramcast.tracer.values.recipes import LARGE_ELEMENTS, Origin, OverBudget, Recipe, TimeBudget, drawn_leaf, work_out

_LARGE_BYTES: Final = 8 * LARGE_ELEMENTS  # in the widest integers
_MOST_WORKED: Final = 4  # arbitrary: large contents kept; a few tensors in a row are indexed by one mask
_UNSEEN: Final = -2  # arbitrary: not a version of any tensor
_SHADOW, _RECIPES = "vramcast_shadow", "vramcast_recipes"  # attributes of storages


@dataclass(slots=True)
class Shadow:
    """The known bytes of one storage, and the largest origin of their sources.

    `version` is `_UNSEEN` if the storage was written before a tensor was laid over it.
    """

    storage: torch.UntypedStorage
    version: int
    origin: Origin
    known_bytes: int


@dataclass(slots=True)
class _Recipes:
    """The recipes of tensors over one storage, by their layout in it."""

    version: int
    by_place: dict[Any, Recipe] = field(default_factory=dict)


def host_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a host tensor that may be changed in place; one that is made in inference mode may not, elsewhere."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return torch.empty(shape, dtype=dtype, device="cpu")  # independent of the default device
    return torch.empty(shape, dtype=dtype, device="cpu")


def is_small(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's values, if known, are worked out at once."""
    return tensor.layout == torch.strided and tensor.numel() <= LARGE_ELEMENTS


def version(tensor: torch.Tensor) -> int:
    """Return how often the tensor was changed. PyTorch does not count for inference tensors, whose values rarely change."""
    return -1 if tensor.is_inference() else plain(tensor)._version


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that owns the storage: a functional collective returns a wrapper that waits on first use."""
    if type(tensor) in TENSORS or type(tensor).__name__ != "AsyncCollectiveTensor":  # its module may not be loaded
        return tensor
    return tensor.elem  # type: ignore[attr-defined]


def is_dense_from_start(tensor: torch.Tensor) -> bool:
    """Return whether a tensor fills its storage from the start: all of it, or the part that `unique` has used."""
    is_whole = _storage(tensor).nbytes() == tensor.nbytes
    return bool(is_whole or (tensor.storage_offset() == 0 and tensor.is_contiguous()))


def _end_bytes(tensor: torch.Tensor) -> int:
    """Return the end of a tensor in its storage."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return plain(tensor).untyped_storage()


def _copy(to: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a host tensor; torch's own copy waits for all of its threads, which takes milliseconds on a busy machine."""
    has_bytes = value.is_cpu and value.layout is torch.strided and not value.is_conj() and not value.is_neg()
    if has_bytes and to.is_contiguous() and value.is_contiguous():
        ctypes.memmove(to.data_ptr(), value.data_ptr(), value.nbytes)
    else:
        to.copy_(value)


class Shadows:
    """The shadows and recipes of a job's storages."""

    @staticmethod
    def find(tensor: torch.Tensor) -> Shadow | None:
        """Return the shadow under `tensor` if its contents are known."""
        storage = _storage(tensor)
        shadow: Shadow | None = getattr(storage, _SHADOW, None)
        if shadow is None or version(tensor) != shadow.version:
            return None
        is_inside = shadow.known_bytes >= storage.nbytes() or _end_bytes(tensor) <= shadow.known_bytes
        return shadow if is_inside else None

    @staticmethod
    def view(shadow: Shadow, tensor: torch.Tensor) -> torch.Tensor:
        """Return the host tensor over `shadow` with the layout of `tensor` over its own storage."""
        seen = host_tensor((0,), tensor.dtype)
        return seen.set_(shadow.storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def later(self, shadow: Shadow, tensor: torch.Tensor) -> Callable[[], torch.Tensor | None]:
        """Return a function that gives the current values of `tensor`, or None once they have changed."""
        noted, view = shadow.version, self.view(shadow, tensor)
        return lambda: view if shadow.version == noted else None

    def keep(self, tensor: torch.Tensor, value: torch.Tensor, origin: Origin) -> None:
        """Record that `tensor` has the contents of the host tensor `value`, unless it is part of an unknown storage."""
        if value.shape != tensor.shape or value.dtype != tensor.dtype or not is_small(tensor):
            return
        shadow = self.find(tensor)
        if shadow is None:
            if not is_dense_from_start(tensor):
                return
            shadow = self._make(_storage(tensor), version(tensor), origin, tensor.nbytes)
        seen = self.view(shadow, tensor)
        if seen.data_ptr() != value.data_ptr():
            _copy(seen, value)
        shadow.origin = max(shadow.origin, origin)

    def keep_all(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], origin: Origin) -> None:
        """Record the results of one call; several may be parts of one storage, such as nonzero's columns."""
        parts: dict[int, list[torch.Tensor]] = {}
        for tensor, value in pairs:
            if is_small(tensor) and tensor.shape == value.shape and tensor.dtype == value.dtype:
                parts.setdefault(_storage(tensor)._cdata, []).append(tensor)
        for tensors in parts.values():
            first, size_bytes = tensors[0], sum(tensor.nbytes for tensor in tensors)
            if len(tensors) > 1 and size_bytes == _storage(first).nbytes() and self.find(first) is None:
                self._make(_storage(first), version(first), origin, size_bytes)
        for tensor, value in pairs:
            self.keep(tensor, value, origin)

    def keep_copy(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """Record that the whole storage of `source` was copied for `tensor`."""
        shadow = self.find(source)
        if shadow is not None and self.find(tensor) is None:
            self._make(_storage(tensor), version(tensor), shadow.origin, shadow.known_bytes).storage.copy_(shadow.storage)

    def keep_storage(self, storage: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
        """Record that a storage on the card was written as a whole; data from the card itself is unknown."""
        self.forget_storage(storage)
        if source.device.type == "cpu" and storage.nbytes() == source.nbytes() <= _LARGE_BYTES:
            shadow = self._make(storage, _UNSEEN, Origin.KNOWN, storage.nbytes())
            shadow.storage.copy_(source)

    def laid(self, tensor: torch.Tensor) -> None:
        """Record that a tensor was made from a storage: the first such tensor has the contents last written there."""
        shadow = getattr(_storage(tensor), _SHADOW, None)
        if shadow is not None and shadow.version == _UNSEEN:
            shadow.version = version(tensor)

    @staticmethod
    def _make(storage: torch.UntypedStorage, at_version: int, origin: Origin, known_bytes: int) -> Shadow:
        """Return a new shadow under a storage, with bytes still to be written."""
        shadow = Shadow(torch.UntypedStorage(known_bytes, device="cpu"), at_version, origin, known_bytes)
        setattr(storage, _SHADOW, shadow)
        return shadow

    def changed(self, tensor: torch.Tensor) -> None:
        """Record that the latest in-place change of `tensor` was also made to its shadow."""
        shadow = getattr(_storage(tensor), _SHADOW, None)
        if shadow is not None:
            shadow.version = version(tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """Record that the contents of `tensor` are now unknown."""
        self.forget_storage(_storage(tensor))

    def forget_storage(self, storage: torch.UntypedStorage) -> None:
        """Record that the contents of a storage are now unknown."""
        setattr(storage, _SHADOW, None)
        setattr(storage, _RECIPES, None)

    @staticmethod
    def recipe(tensor: torch.Tensor) -> Recipe | None:
        """Return the recipe of `tensor`, if there is one."""
        recipes: _Recipes | None = getattr(_storage(tensor), _RECIPES, None)
        return recipes.by_place.get(_place(tensor)) if recipes is not None and recipes.version == version(tensor) else None

    @staticmethod
    def keep_recipe(tensor: torch.Tensor, recipe: Recipe) -> None:
        """Record the recipe of `tensor`."""
        storage, at = _storage(tensor), version(tensor)
        recipes: _Recipes | None = getattr(storage, _RECIPES, None)
        if recipes is None or recipes.version != at:
            recipes = _Recipes(at)
            setattr(storage, _RECIPES, recipes)
        recipes.by_place[_place(tensor)] = recipe


def _place(tensor: torch.Tensor) -> Any:
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


class TensorValues:
    """Host copies of the contents of card tensors, and recipes for contents not worked out yet.

    Args:
        on_card: Whether a tensor lies on the card; None: torch's own answer.
        devices: Device types that stand for the card.
    """

    def __init__(self, on_card: Callable[[torch.Tensor], bool] | None, devices: tuple[str, ...]) -> None:
        super().__init__()
        self.on_card = on_card or (lambda tensor: tensor.is_cuda)
        self._devices = devices
        self._shadows = Shadows()
        self._budget = TimeBudget()
        self._worked: deque[tuple[Recipe, torch.Tensor]] = deque(maxlen=_MOST_WORKED)

    def written(self, storage: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
        """Record that a storage was written with another one's bytes; `torch.load` then makes a tensor from it."""
        if storage.device.type in self._devices:
            self._shadows.keep_storage(storage, source)

    def copied(self, result: Any, source: torch.Tensor) -> None:
        """Record that `copy.deepcopy` made one tensor from another, with its whole storage."""
        if isinstance(result, torch.Tensor) and self.on_card(result):
            self._shadows.keep_copy(result, source)

    def same(self, result: torch.Tensor, source: torch.Tensor) -> None:
        """Record that a card tensor now has the contents of another one, or its own earlier contents."""
        if result is source:
            self._shadows.changed(result)
        elif (found := self.value(source)) is not None and result.numel() == source.numel():
            known, origin = found  # a collective reads its tensors in memory order, whatever their shapes
            self._shadows.keep(result, known.reshape(result.shape), origin)

    def holds(self, result: torch.Tensor, value: torch.Tensor, origin: Origin) -> None:
        """Record that a card tensor now has the contents of a host tensor with as many elements."""
        if result.numel() == value.numel():
            self._shadows.keep(result, value.reshape(result.shape).to(result.dtype), origin)

    def laid(self, tensor: torch.Tensor) -> None:
        """Record that a tensor was made from a storage."""
        if self.on_card(tensor):
            self._shadows.laid(tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """Record that the contents of a card tensor are now unknown."""
        self._shadows.forget(tensor)

    def is_card(self, value: Any) -> bool:
        """Return whether an argument names the card."""
        if isinstance(value, str):
            return value.partition(":")[0] in self._devices
        return isinstance(value, torch.device) and value.type in self._devices

    def value(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Origin] | None:
        """Return a host tensor with the contents of `tensor`, and their origin; None if they are not available at once."""
        if not is_small(tensor):
            return None
        if not self.on_card(tensor):
            return None if _is_hollow(tensor) else (tensor.detach(), Origin.KNOWN)
        shadow = self._shadows.find(tensor)
        return (self._shadows.view(shadow, tensor), shadow.origin) if shadow is not None else None

    def guess(self, name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, Origin] | None:
        """Return values for a small unknown tensor that meets a known one or decides something; None if it stays unknown."""
        if not is_small(tensor) or not self.on_card(tensor):
            return None
        is_made = self._shadows.recipe(tensor) is not None
        return self.work_out(tensor, name) if tensor.is_floating_point() or is_made else None

    def recipe(self, tensor: torch.Tensor) -> Recipe:
        """Return the recipe of `tensor`."""
        if tensor.layout != torch.strided:
            return drawn_leaf(tensor.shape, tensor.dtype)
        if self.on_card(tensor):
            if (shadow := self._shadows.find(tensor)) is not None:
                later = self._shadows.later(shadow, tensor)
                return Recipe(tensor.shape, tensor.dtype, shadow.origin, known=later)
            return self._shadows.recipe(tensor) or drawn_leaf(tensor.shape, tensor.dtype)
        if _is_hollow(tensor):
            return drawn_leaf(tensor.shape, tensor.dtype)
        noted, host = version(tensor), tensor.detach()
        known = lambda: host if version(host) == noted else None  # noqa: E731
        return Recipe(tensor.shape, tensor.dtype, Origin.KNOWN, known=known)

    def work_out(self, tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, Origin] | None:
        """Return the contents of `tensor`, an argument of `name`, and their origin; None if that is too much work."""
        recipe = self.recipe(tensor)
        for earlier, value in self._worked:  # a mask that selects twice must do so alike, even if the budget is used up
            if earlier is recipe:
                return value, recipe.origin
        if recipe.is_drawn and name.startswith("unique") and not tensor.is_floating_point():
            value = torch.arange(tensor.numel(), device="cpu").view(tensor.shape).to(tensor.dtype)
        else:
            try:
                value = work_out(recipe, self._budget)
            except OverBudget:
                return None
            if not is_small(tensor) and value.nbytes <= _LARGE_BYTES:  # small ones are kept below
                self._worked.append((recipe, value))
        if self.on_card(tensor):
            self._shadows.keep(tensor, value, recipe.origin)
        return value, recipe.origin


def _is_hollow(tensor: torch.Tensor) -> bool:
    """Return whether a host tensor is hollow: storage without meaningful values."""
    return tensor.is_floating_point() and tensor.nbytes >= BIG_BYTES
