"""Batches that are slow to load: one new sample, and the other samples of an earlier batch.

Values do not matter on the null GPU, but shapes do. PyTorch's own collation stacks samples of one shape, so one of them tells
the shapes of a batch. All other batches are loaded as the job loads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Final

import torch
from torch.utils.data import default_collate

from vramcast.tracer.hooks.torch_api import LOADER_COLLATION, LOADER_DATA, tree_leaves, tree_map

_SLOW_S: Final = 0.05  # arbitrary: time for a batch
_MOST_KEPT: Final = 4  # arbitrary: batches, each of another kind


class SlowBatches:
    """The batches of a job's data loaders.

    Args:
        position: Returns the place in the allocator's history.
    """

    def __init__(self, position: Callable[[], int]) -> None:
        self._position = position
        self._slow: set[int] = set()  # identities of data sets
        self._kept: dict[Hashable, Any] = {}

    def fetching(self, original: Any) -> Any:
        """Return what replaces the method that loads the samples with some indices."""

        def fetch(fetcher: Any, indices: Any) -> Any:
            data = fetcher.dataset
            if fetcher.collate_fn is not default_collate or not fetcher.auto_collation or hasattr(data, "__getitems__"):
                return original(fetcher, indices)
            before, began_s = self._state(data), time.monotonic()
            if id(data) in self._slow and len(indices) > 1:
                batch = self._kept.get(_kind(default_collate([data[indices[0]]])))
                if batch is not None and len(indices) <= _length(batch) and self._state(data) == before:
                    return _cut(batch, len(indices))
            batch = original(fetcher, indices)
            if self._state(data) == before:
                self._keep(data, batch, time.monotonic() - began_s)
            return batch

        return fetch

    def waiting(self, original: Any) -> Any:
        """Return what replaces the method that waits for a batch of a worker process; later ones inherit this object."""

        def wait(iterator: Any) -> Any:
            began_s = time.monotonic()
            batch = original(iterator)
            if getattr(iterator, LOADER_COLLATION) is default_collate:
                self._keep(getattr(iterator, LOADER_DATA), batch, time.monotonic() - began_s)
            return batch

        return wait

    def _state(self, data: Any) -> tuple[Any, ...]:
        """Return what loading must leave as it is: the data set's own numbers, and the card's memory."""
        numbers = [one for one in getattr(data, "__dict__", {}).values() if type(one) in (int, float)]
        return *numbers, self._position()

    def _keep(self, data: Any, batch: Any, seconds: float) -> None:
        n, kind = _length(batch), _kind(batch)
        if seconds <= _SLOW_S or any(isinstance(one, torch.Tensor) and one.is_cuda for one in _leaves(batch)):
            return
        self._slow.add(id(data))
        if kind not in self._kept or n > _length(self._kept[kind]):
            self._kept[kind] = _cut(batch, n)
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]


def _is_leaf(part: Any) -> bool:
    return isinstance(part, list) and all(isinstance(one, (str, bytes)) for one in part)  # spec: strings, of `default_collate`


def _leaves(batch: Any) -> list[Any]:
    found: list[Any] = tree_leaves(batch, is_leaf=_is_leaf)
    return found


def _length(batch: Any) -> int:
    return min(map(len, _leaves(batch)), default=0)


def _kind(batch: Any) -> Hashable:
    """Return the kinds of a batch's parts, whatever its length."""
    return tuple((one.shape[1:], one.dtype) if isinstance(one, torch.Tensor) else type(one) for one in _leaves(batch))


def _cut(batch: Any, length: int) -> Any:
    """Return the first samples of a batch, in tensors that the job may change."""

    def cut(part: Any) -> Any:
        return part[:length].clone() if isinstance(part, torch.Tensor) else part[:length]

    return tree_map(cut, batch, is_leaf=_is_leaf)
