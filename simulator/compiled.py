"""The allocator of `caching.py`, compiled: whole lists of requests at tens of millions a second. See csrc/caching.c."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from vramcast.core.compiler import shared_library
from vramcast.core.errors import CompilerError
from vramcast.simulator.card import AddressPolicy, Card
from vramcast.simulator.outcome import COUNTS, EVENT, LEVELS, Outcome, Statistics
from vramcast.simulator.requests import Requests
from vramcast.simulator.rules import N_INTERVALS, SERVING
from vramcast.simulator.settings import NO_LIMIT, Settings

SOURCE: Final = Path(__file__).parent / "csrc" / "caching.c"

_int64 = ctypes.c_int64
_pointer = ctypes.c_void_p
# Fields of struct outcome in caching.c, and of `Outcome`.
_COLUMNS: Final = {
    "address": "address", "block_size": "block_bytes", "allocated": "allocated_bytes", "active": "active_bytes",
    "reserved": "reserved_bytes",
}  # fmt: skip


class _Config(ctypes.Structure):
    _fields_ = (
        *((name, _int64) for name in ("max_split", "max_non_split_rounding", "large_segment", "allowed")),
        *((name, _int64) for name in ("total", "capacity", "context")),
        ("divisions", _int64 * N_INTERVALS),
        ("gc_threshold", ctypes.c_double),
        *((name, _int64) for name in ("expandable", "policy", "waits", *SERVING, "stop_at_oom")),
    )


class _Requests(ctypes.Structure):
    _fields_ = (("n", _int64), ("n_pools", _int64), *((name, _pointer) for name in ("kind", "size", "stream", "block")))


class _Outcome(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in (*_COLUMNS, "events")),
        ("n_events", _int64),
        ("stopped_at", _int64),
        ("statistics", _int64 * (2 * len(LEVELS) + len(COUNTS))),
    )


def load(source: Path, *, sanitize: bool = False) -> ctypes.CDLL:
    """Return the library compiled from one C file.

    Raises:
        CompilerError: The library cannot be compiled here.
    """
    path = shared_library(source, sanitize=sanitize)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompilerError(f"{path} does not load ({error}): delete it and try again.") from None


@functools.cache
def library(*, sanitize: bool = False) -> ctypes.CDLL:
    """Return the compiled library, built at the first call.

    Raises:
        CompilerError: The library cannot be compiled here; `vramcast doctor` reports that, and `play` falls back to plain
            Python.
    """
    loaded = load(SOURCE, sanitize=sanitize)
    loaded.caching_play.restype = ctypes.c_int
    loaded.caching_play.argtypes = [_pointer, _pointer, _pointer]
    loaded.caching_free.restype = None
    loaded.caching_free.argtypes = [_pointer]
    return loaded


def play(
    requests: Requests, settings: Settings, card: Card, *, stop_at_oom: bool, columns: bool, native: ctypes.CDLL | None = None
) -> Outcome:
    """Play all requests from an empty allocator; for the arguments see `engine.play`.

    Raises:
        MemoryError: The host ran out of memory.
        CompilerError: The library cannot be compiled here.
    """
    native = native or library()
    n = len(requests)
    kind = np.ascontiguousarray(requests.kind, np.uint8)
    size = np.ascontiguousarray(requests.size_bytes, np.int64)
    stream = np.ascontiguousarray(requests.stream, np.int32)
    block = np.ascontiguousarray(requests.block, np.int64)
    allowed = requests.rules.allowed_bytes(settings.memory_fraction, card.total_bytes)
    config = _Config(
        max_split=2**63 - 1 if settings.max_split_bytes == NO_LIMIT else settings.max_split_bytes,
        max_non_split_rounding=settings.oversize_bytes,
        large_segment=settings.large_segment_bytes,
        allowed=-1 if allowed is None else allowed,
        total=card.total_bytes,
        capacity=card.capacity_bytes,
        context=card.context_bytes,
        divisions=(_int64 * N_INTERVALS)(*settings.roundup_divisions),
        gc_threshold=settings.garbage_collection_threshold,
        expandable=settings.expandable_segments,
        policy=get_args(AddressPolicy).index(card.policy),
        waits=requests.waits,
        **{name: getattr(requests.rules, name) for name in SERVING},
        stop_at_oom=stop_at_oom,
    )
    given = _Requests(n, requests.n_pools, kind.ctypes.data, size.ctypes.data, stream.ctypes.data, block.ctypes.data)
    results: dict[str, Any] = {}
    if columns:
        results = {name: np.full(n, -1, np.int64) for name in _COLUMNS}
    outcome = _Outcome(**{name: array.ctypes.data for name, array in results.items()})
    failed = native.caching_play(ctypes.byref(config), ctypes.byref(given), ctypes.byref(outcome))
    try:
        if failed:
            raise MemoryError("The allocator simulator ran out of this host's memory.")
        events = np.empty(outcome.n_events, EVENT)
        if outcome.n_events:
            ctypes.memmove(events.ctypes.data, outcome.events, events.nbytes)
    finally:
        native.caching_free(outcome.events)
    return Outcome(
        **{field: results.get(column) for column, field in _COLUMNS.items()},
        events=events,
        statistics=Statistics.of(list(outcome.statistics)),
        stopped_at=None if outcome.stopped_at < 0 else outcome.stopped_at,
    )
