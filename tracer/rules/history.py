"""The job's requests to the card's allocator as they happen, and the deaths of storages in their true order."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from vramcast.tracer.format.trace import Action, Trace
from vramcast.tracer.recording.profile import ProfilePlace


class History:
    """A growing list of requests and frees.

    A storage dies with its last tensor, wherever that happens (Python, autograd's graph). The C++ storage keeps its Python
    object alive, so a weak reference to it ends with the storage itself.
    """

    def __init__(self) -> None:
        self.position = 0  # requests and frees so far
        self.contexts: list[tuple[int, ProfilePlace]] = []  # for each request, by the address assigned here
        self.searches: list[int] = []  # rows in which a convolution emptied the cache
        self._rows: list[tuple[Action, int, int, int]] = []  # action, address, size, block
        self._alive: dict[int, weakref.ref[Any]] = {}  # by StorageImpl
        self._addresses: dict[int, int] = {}

    def knows(self, storage: torch.UntypedStorage) -> bool:
        """Return whether the storage was requested before, so that a tensor over it is a view."""
        return storage._cdata in self._alive

    def address(self, storage: torch.UntypedStorage) -> int | None:
        """Return the address of the storage; None if it takes no memory on the card."""
        return self._addresses.get(storage._cdata)

    def begin(self, storage: torch.UntypedStorage, size_bytes: int, context: ProfilePlace) -> None:
        """Begin a storage of `size_bytes`, which ends by itself; one of 0 B takes no memory."""
        key = storage._cdata
        row = self.ask(size_bytes, context) if size_bytes else None

        def end(_: Any) -> None:
            del self._alive[key]
            if row is not None:
                del self._addresses[key]
                self.free(row)

        self._alive[key] = weakref.ref(storage, end)
        if row is not None:
            self._addresses[key] = row + 1

    def ask(self, size_bytes: int, context: ProfilePlace) -> int:
        """Note a request and return its row."""
        row = len(self._rows)
        self._rows.append((Action.ALLOC, row + 1, size_bytes, row))
        self.contexts.append((row + 1, context))
        self.position += 1
        return row

    def free(self, row: int) -> None:
        """Free the block that began in `row`. With one stream its memory can be reused at once."""
        _, address, size_bytes, _ = self._rows[row]
        self._rows.append((Action.FREE_REQUESTED, address, size_bytes, row))
        self._rows.append((Action.FREE_COMPLETED, address, size_bytes, row))
        self.position += 1

    def empty_cache(self) -> None:
        """Record a call of `torch.cuda.empty_cache()`."""
        self._rows.append((Action.EMPTY_CACHE, 0, 0, -1))

    def end_search(self) -> None:
        """Record that a convolution empties the cache, after its search for a plan."""
        self.searches.append(len(self._rows))
        self.empty_cache()

    def trace(self, header: dict[str, Any]) -> Trace:
        """Return the history so far; blocks still alive live to the end."""
        action, address, size_bytes, block = zip(*self._rows, strict=True) if self._rows else ((), (), (), ())
        return Trace.build({"action": action, "address": address, "size_bytes": size_bytes, "block": block}, header=header)
