"""The operator, module and pass of each allocation, noted by a small library while it happens (csrc/watcher.cpp).

It observes the same ranges as PyTorch's profiler, so `profile.py` gives the same facts.
"""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np
from numpy.ctypeslib import as_array

from vramcast.tracer.format.operators import FACTORIES
from vramcast.tracer.recording.profile import Contexts, ProfilePlace

LIBRARY = "NULLGPU_WATCHER"  # an environment variable of a warm worker
_loaded: list[ctypes.CDLL] = []  # at most one


def load(library: str) -> None:
    """Load the library, compiled for this torch; without one, or with one that does not load, there is no watcher."""
    with contextlib.suppress(OSError):
        if library:
            loaded = ctypes.CDLL(library)
            loaded.watcher_read.restype, loaded.watcher_name.restype = ctypes.c_size_t, ctypes.c_char_p
            _loaded[:] = [loaded]


class Watcher:
    """The facts about allocations in one session; there is one at a time in a process."""

    @staticmethod
    def is_loaded() -> bool:
        """Return whether this process, or its parent before the fork, has loaded the library."""
        return bool(_loaded)

    def start(self) -> None:
        """Begin; in the thread that runs the job."""
        names = [name.encode() for name in FACTORIES]
        _loaded[0].watcher_start((ctypes.c_char_p * len(names))(*names), ctypes.c_size_t(len(names)))

    def drain(self) -> None:
        """Do nothing: PyTorch keeps no records."""

    def stop(self) -> None:
        """End."""
        _loaded[0].watcher_stop()

    def contexts(self) -> Contexts:
        """Return the context of every CUDA allocation."""
        library = _loaded[0]
        addresses, place_of, fields = (ctypes.POINTER(kind)() for kind in (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int32))
        n_places = ctypes.c_size_t()
        n = library.watcher_read(*map(ctypes.byref, (addresses, place_of, fields, n_places)))
        if not n:
            return Contexts.of(())
        table = [
            ProfilePlace(*(library.watcher_name(number).decode() for number in (op, module)), *map(bool, flags))
            for op, module, *flags in as_array(fields, (n_places.value, 5)).tolist()
        ]
        address, place = (as_array(column, (n,)) for column in (addresses, place_of))
        return Contexts(address.copy(), place.astype(np.int64), table)
