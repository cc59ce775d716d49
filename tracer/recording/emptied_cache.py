"""Places at which the allocator's cache was emptied: its history only shows the segments released.

    ALLOC           a search of cudnn.benchmark takes the largest workspace that its plans could use,
    FREE_REQUESTED
    FREE_COMPLETED  and frees it;
    EMPTY_CACHE     then ATen empties the cache: the row's operator is the convolution
    SEGMENT_FREE
    ALLOC           workspace of the chosen plan

spec: torch 2.6 to 2.11, ATen/native/cudnn/Conv_v8.cpp, `run_single_conv`
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vramcast.tracer.format.trace import Action, Category, Trace

_RELEASED = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_TAKEN = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)


def positions(trace: Trace) -> Any:
    """Return, for each row, the number of requests and frees up to and including it."""
    return np.cumsum((trace.action == Action.ALLOC) | (trace.action == Action.FREE_REQUESTED))


def with_empty_cache(trace: Trace, emptied: list[int]) -> Trace:
    """Return `trace` with a row wherever the job emptied the cache, given as places in the history."""
    if not emptied:
        return trace
    position = positions(trace)
    is_segment = trace.is_segment_event()
    rows = []
    for at in emptied:
        first, end = np.searchsorted(position, [at, at + 1])
        segment_rows = np.flatnonzero(is_segment[first:end])  # before the segments it released, after the free at that place
        rows.append(first + int(segment_rows[0]) if len(segment_rows) else end)
    return _with_rows(trace, np.array(rows, np.int64))


def with_searches(trace: Trace, room_bytes: int) -> Trace:
    """Return the trace of a job with cudnn.benchmark, with a row wherever a search emptied the cache, and trial workspaces.

    A search that found nothing in the cache to release leaves no sign, and gets no row.

    Args:
        trace: The trace, with operators.
        room_bytes: Bytes that the card has for segments. Segments released because a request found the card full are none
            of a search.
    """
    action = trace.action
    released, taken = np.isin(action, _RELEASED), np.isin(action, _TAKEN)
    begins = np.flatnonzero(released & ~np.append(False, released[:-1]))
    asking = _request_before(trace, begins)
    following = _next(~released, begins)
    taken_bytes = np.append(0, np.cumsum(np.where(taken, trace.size_bytes, 0)))
    wanted_bytes = taken_bytes[_next(~taken, following)] - taken_bytes[following]
    is_full = np.append(action == Action.OOM, False)[following]
    is_full |= trace.reserved_bytes()[begins - 1] + wanted_bytes > room_bytes
    # A block of a convolution that was no plan's workspace, and is freed right before, is a trial also on a full card.
    is_trial = (trace.block[begins - 1] == asking) & (trace.category[asking] != Category.WORKSPACE)
    by_convolution = (asking >= 0) & trace.where(lambda operator: operator.is_convolution)[asking]
    chosen = by_convolution & (is_trial | ~is_full) & (action[begins - 1] != Action.EMPTY_CACHE)
    rows = begins[chosen]
    found = of_convolutions(_with_rows(trace, rows), rows + np.arange(len(rows)))
    category = found.category.copy()
    category[found.is_search()] = Category.WORKSPACE
    return replace(found, category=category)


def of_convolutions(trace: Trace, rows: Any) -> Trace:
    """Return `trace` with the operator of the EMPTY_CACHE rows `rows`: the convolution that made the request before."""
    at = np.asarray(rows, np.int64)
    operator = trace.operator.copy()
    operator[at] = operator[_request_before(trace, at)]
    return replace(trace, operator=operator)


def _request_before(trace: Trace, rows: Any) -> Any:
    """Return the last ALLOC row before each of `rows`; -1 if there is none."""
    return np.maximum.accumulate(np.where(trace.action == Action.ALLOC, np.arange(len(trace)), -1), dtype=np.int64)[rows]


def _next(mask: Any, rows: Any) -> Any:
    """Return, for each of `rows`, the first row from it on where `mask` is true; the number of rows if there is none."""
    places = np.append(np.flatnonzero(mask), len(mask))
    return places[np.searchsorted(places, rows)]


def _with_rows(trace: Trace, rows: Any) -> Trace:
    """Return `trace` with an EMPTY_CACHE row before each of `rows`."""
    n, following = len(rows), np.minimum(rows, max(len(trace) - 1, 0))
    events: dict[str, Any] = {"action": [Action.EMPTY_CACHE] * n, "size_bytes": [0] * n, "block": [-1] * n}
    if len(trace):
        events |= {name: getattr(trace, name)[following] for name in ("step", "phase", "time_us")}
    return trace.insert(rows, events)
