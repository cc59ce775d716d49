"""Tests of a pool like CnMem."""

from __future__ import annotations

from hypothesis import given

from benchmarks.peers.planners import cnmem
from tests.plans.blocks import Event, trace_of, traces
from vramcast.plans.lifetimes import Lifetimes
from vramcast.tracer.format.trace import Action, Trace


def played(*requests: int) -> int:
    """Return the peak of requests: n requests n units of 512 B, -n frees the n-th request (from 1)."""
    events: list[Event] = []
    for request in requests:
        if request > 0:
            events.append((Action.ALLOC, 512 * request, len(events)))
        else:
            events.append((Action.FREE_COMPLETED, events[-request - 1][1], -request - 1))
    return cnmem.peak(trace_of(events)) // 512


def test_rounds_sizes_up() -> None:
    assert cnmem.peak(trace_of([(Action.ALLOC, 513, 0), (Action.ALLOC, 1, 1)])) == 1536


def test_reuses_and_splits_free_block() -> None:
    assert played(4, -1, 1, 3) == 4
    assert played(4, -1, 1, 4) == 8


def test_takes_smallest_block_that_fits() -> None:
    assert played(5, 1, 3, -1, -3, 3, 5) == 9


def test_merges_pieces_with_both_neighbours() -> None:
    assert played(6, -1, 2, 2, 2, -3, -5, -4, 6) == 6


def test_keeps_segments_apart() -> None:
    assert played(2, 2, -1, -2, 4) == 8


@given(trace=traces())
def test_pool_is_no_smaller_than_live_bytes(trace: Trace) -> None:
    assert Lifetimes.of(trace).peak_live()[0] <= cnmem.peak(trace) <= Lifetimes.of(trace).size_bytes.sum()
