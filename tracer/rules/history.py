"""What the job asked of the card's allocator, as it happens: requests, and the deaths of storages in their true order."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from vramcast.tracer.format.trace import Action, Trace
from vramcast.tracer.recording.recorder import Place


class History:
    """A growing list of requests and frees.

    A storage dies when its last tensor does, wherever that happens (Python, autograd's graph): its Python object is kept
    by the C++ one, so a weak reference to it ends with the storage itself.
    """

    def __init__(self) -> None:
        self.position = 0  # requests and frees so far
        self.contexts: list[tuple[int, Place]] = []  # of each request, by the address which it is given here
        self._rows: list[tuple[Action, int, int, int]] = []  # action, address, size, block
        self._alive: dict[int, weakref.ref[Any]] = {}  # by StorageImpl
        self._addresses: dict[int, int] = {}

    def knows(self, storage: torch.UntypedStorage) -> bool:
        """Return whether the storage was asked for before: then a tensor over it is a view."""
        return storage._cdata in self._alive

    def address(self, storage: torch.UntypedStorage) -> int | None:
        """Return the address which the storage was given; None when it takes no memory of the card."""
        return self._addresses.get(storage._cdata)

    def begin(self, storage: torch.UntypedStorage, size_bytes: int, context: Place) -> None:
        """A storage of `size_bytes` begins; it ends by itself. One of 0 B takes no memory."""
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

    def ask(self, size_bytes: int, context: Place) -> int:
        """Note a request and return its row."""
        row = len(self._rows)
        self._rows.append((Action.ALLOC, row + 1, size_bytes, row))
        self.contexts.append((row + 1, context))
        self.position += 1
        return row

    def free(self, row: int) -> None:
        """The block which began in `row` dies. One stream: its memory may be used again at once."""
        _, address, size_bytes, _ = self._rows[row]
        self._rows.append((Action.FREE_REQUESTED, address, size_bytes, row))
        self._rows.append((Action.FREE_COMPLETED, address, size_bytes, row))
        self.position += 1

    def empty_cache(self) -> None:
        """The job called `torch.cuda.empty_cache()`."""
        self._rows.append((Action.EMPTY_CACHE, 0, 0, -1))

    def trace(self, header: dict[str, Any]) -> Trace:
        """Return what happened so far; what lives still, lives to the end."""
        action, address, size_bytes, block = zip(*self._rows, strict=True) if self._rows else ((), (), (), ())
        return Trace.build({"action": action, "address": address, "size_bytes": size_bytes, "block": block}, header=header)
