"""Concurrent jobs: each thread of `in_parallel` is a lane, and a warm worker has a process of its own for each lane."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Final, TypeVar

from vramcast.core.errors import VramcastError

_MOST = 4  # arbitrary: a job takes up to a GiB of main memory, in addition to memory shared with the others
_thread = threading.local()


# Objects that serve several lanes, faster after a call of `widen(lanes)`.
widened: Final[weakref.WeakSet[Any]] = weakref.WeakSet()

Item = TypeVar("Item")
Found = TypeVar("Found")


def lane() -> int:
    """Return the lane of the calling thread; 0 outside `in_parallel`."""
    return int(getattr(_thread, "lane", 0))


def n_processors() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def n_lanes() -> int:
    """Return the number of concurrent jobs: the processors available to this process, up to four."""
    return min(n_processors(), _MOST)


def n_free_lanes() -> int:
    """Return the number of jobs that the calling thread may run at once: 1 inside `in_parallel`, whose lanes are taken."""
    return 1 if hasattr(_thread, "lane") else n_lanes()


def in_parallel(work: Callable[[Item], Found], items: Sequence[Item], *, lanes: int | None = None) -> Iterator[Found]:
    """Yield `work(item)` for each item, in the items' order; an exception of `work` is raised in its place.

    Args:
        work: Waits for other processes most of the time: it runs in a thread.
        items: Taken one after the other, by any free lane.
        lanes: Most items processed at a time; default: `n_lanes()`.
    """
    lanes = min(lanes or n_lanes(), len(items))
    if lanes < 2:
        yield from map(work, items)
        return
    waiting: queue.SimpleQueue[tuple[Future[Found], Item]] = queue.SimpleQueue()
    futures: list[Future[Found]] = [Future() for _ in items]
    for pair in zip(futures, items, strict=True):
        waiting.put(pair)

    def serve(number: int) -> None:
        _thread.lane = number
        with contextlib.suppress(queue.Empty):
            while True:
                future, item = waiting.get_nowait()
                try:
                    future.set_result(work(item))
                except BaseException as error:
                    future.set_exception(error)

    for one in list(widened):
        with contextlib.suppress(VramcastError):  # a caller of the worker gets the error
            one.widen(lanes)
    for number in range(lanes):  # daemons: an interrupted caller does not wait for them
        threading.Thread(target=copy_context().run, args=(serve, number), daemon=True).start()
    try:
        for future in futures:
            yield future.result()
    finally:
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.get_nowait()
