"""Places at which the allocator's cache was emptied: its history only shows the segments released.

    ALLOC           a search of cudnn.benchmark takes the largest workspace that its plans could use,
    FREE_REQUESTED
    FREE_COMPLETED  and frees it;
    EMPTY_CACHE     then ATen empties the cache: the row's operator is the convolution
    SEGMENT_FREE    if it had anything to release
    ALLOC           workspace of the chosen plan

spec: torch 2.6 to 2.14, ATen/native/cudnn/Conv_v8.cpp, `run_single_conv`
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vramcast.tracer.format.trace import Action, Category, Trace


def positions(trace: Trace) -> Any:
    """Return, for each row, the number of requests and frees up to and including it."""
    return np.cumsum((trace.action == Action.ALLOC) | (trace.action == Action.FREE_REQUESTED))


def with_empty_cache(trace: Trace, emptied: list[int]) -> Trace:
    """Return `trace` with a row wherever the job emptied the cache, given as places in the history."""
    return _with_rows(trace, _rows_after(trace, emptied)) if emptied else trace


def with_searches(trace: Trace, tried: list[int]) -> Trace:
    """Return the trace with a row wherever a search of cudnn.benchmark emptied the cache, and with its trial workspace.

    Args:
        trace: The trace, with operators.
        tried: Places in the history at which a search tried plans: after the request of its workspace, if they need one.
    """
    if not tried:
        return trace
    requests = np.flatnonzero((trace.action == Action.ALLOC) | (trace.action == Action.FREE_REQUESTED))
    places = np.unique(np.array(tried, np.int64))
    places = places[(places > 0) & (places <= len(requests))]
    is_request = (trace.action == Action.ALLOC) & trace.where(lambda operator: operator.is_convolution)
    places = places[is_request[requests[places - 1]]]  # a program may time its own convolutions, after their last free
    last, following = requests[places - 1], np.append(requests, -1)[places]
    is_freed = (following >= 0) & (trace.block[following] == last)
    rows = _rows_after(trace, (places + is_freed).tolist())
    found = of_convolutions(_with_rows(trace, rows), rows + np.arange(len(rows)))
    category = found.category.copy()
    category[found.is_search()] = Category.WORKSPACE
    return replace(found, category=category)


def _rows_after(trace: Trace, places: list[int]) -> Any:
    """Return, for each place in the history, the row after it, and before the segments that were released there."""
    position, is_segment = positions(trace), trace.is_segment_event()
    rows = []
    for at in places:
        first, end = np.searchsorted(position, [at, at + 1])
        rows.append(next((row for row in range(first, end) if is_segment[row]), end))
    return np.array(rows, np.int64)


def of_convolutions(trace: Trace, rows: Any) -> Trace:
    """Return `trace` with the operator of the EMPTY_CACHE rows `rows`: the convolution that made the request before."""
    at = np.asarray(rows, np.int64)
    operator = trace.operator.copy()
    last = np.maximum.accumulate(np.where(trace.action == Action.ALLOC, np.arange(len(trace)), -1), dtype=np.int64)
    operator[at] = operator[last[at]]
    return replace(trace, operator=operator)


def _with_rows(trace: Trace, rows: Any) -> Trace:
    """Return `trace` with an EMPTY_CACHE row before each of `rows`."""
    if not len(rows):
        return trace
    n, following = len(rows), np.minimum(rows, max(len(trace) - 1, 0))
    events: dict[str, Any] = {"action": [Action.EMPTY_CACHE] * n, "size_bytes": [0] * n, "block": [-1] * n}
    if len(trace):
        events |= {name: getattr(trace, name)[following] for name in ("step", "phase", "time_us")}
    return trace.insert(rows, events)
