"""Birth and death of blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from vramcast.plans.lifetimes import Lifetimes
from vramcast.tracer.format.trace import Action, Trace

from .blocks import trace_of, traces


def test_block_lives_from_alloc_to_completed_free() -> None:
    trace = trace_of(
        [
            (Action.SEGMENT_ALLOC, 2 << 20, -1),
            (Action.ALLOC, 513, 1),
            (Action.ALLOC, 0, 2),
            (Action.FREE_REQUESTED, 513, 1),
            (Action.FREE_COMPLETED, 100, -1),
            (Action.FREE_COMPLETED, 513, 1),
        ]
    )
    found = Lifetimes.of(trace)
    assert (found.row.tolist(), found.birth.tolist(), found.death.tolist()) == ([1, 2], [1, 2], [5, 6])
    assert (found.size_bytes.tolist(), found.length) == ([1024, 512], 6)
    assert found.live().tolist() == [0, 1024, 1536, 1536, 1536, 512, 512]
    assert found.peak_live() == (1536, 2)
    assert found.only(np.array([1])).birth.tolist() == [2]


def test_trace_without_blocks_has_no_peak() -> None:
    assert Lifetimes.of(Trace.build({"action": [], "size_bytes": [], "block": []})).peak_live() == (0, 0)


@given(trace=traces())
def test_live_bytes_match_trace(trace: Trace) -> None:
    found = Lifetimes.of(trace)
    live = [int(found.size_bytes[(found.birth <= time) & (time < found.death)].sum()) for time in range(len(trace))]
    assert found.live()[:-1].tolist() == live
    assert found.peak_live()[0] == trace.peak_live()[0] == max(live, default=0)
