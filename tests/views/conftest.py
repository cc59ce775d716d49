"""Fixtures of the views' tests: one small job."""

from __future__ import annotations

import pytest

from vramcast.simulator.trace_edits import with_context
from vramcast.tracer.format.trace import Action, BlockState, Category, Phase, Trace

MIB = 2**20


@pytest.fixture
def job_trace() -> Trace:
    """Return a trace of two segments and four blocks: three end, one later than requested, and a segment is released.

    row   action           size         live after   reserved after   step, phase
      0   SEGMENT_ALLOC    2 MiB             0        2 MiB           -1 build
      1   ALLOC            4,000 B       4,096                        -1 build     parameter
      2   SEGMENT_ALLOC    20 MiB                    22 MiB            0 forward
      3   ALLOC            10 MiB       10 MiB + 4,096                 0 forward   activation
      4   ALLOC            1 MiB        11 MiB + 4,096                 0 forward   workspace: the peak of live
      5   FREE_REQUESTED   1 MiB
      6   FREE_COMPLETED   1 MiB        10 MiB + 4,096                 0 forward
      7   FREE_REQUESTED   10 MiB                                      0 backward
      8   ALLOC            1,000 B      10 MiB + 5,120                 0 backward  unknown
      9   FREE_COMPLETED   10 MiB        5,120                         0 backward
     10   FREE_REQUESTED   1,000 B                                     1 optimizer
     11   FREE_COMPLETED   1,000 B       4,096                         1 optimizer
     12   SEGMENT_FREE     20 MiB                     2 MiB            1 optimizer
     13   SNAPSHOT
    """
    small, large = 2**47, 2**47 + 64 * MIB
    rows = [
        (Action.SEGMENT_ALLOC, small, 2 * MIB, -1, Category.UNKNOWN),
        (Action.ALLOC, small, 4000, 1, Category.PARAMETER),
        (Action.SEGMENT_ALLOC, large, 20 * MIB, -1, Category.UNKNOWN),
        (Action.ALLOC, large, 10 * MIB, 3, Category.ACTIVATION),
        (Action.ALLOC, large + 10 * MIB, MIB, 4, Category.WORKSPACE),
        (Action.FREE_REQUESTED, large + 10 * MIB, MIB, 4, Category.UNKNOWN),
        (Action.FREE_COMPLETED, large + 10 * MIB, MIB, 4, Category.UNKNOWN),
        (Action.FREE_REQUESTED, large, 10 * MIB, 3, Category.UNKNOWN),
        (Action.ALLOC, small + 4096, 1000, 8, Category.UNKNOWN),
        (Action.FREE_COMPLETED, large, 10 * MIB, 3, Category.UNKNOWN),
        (Action.FREE_REQUESTED, small + 4096, 1000, 8, Category.UNKNOWN),
        (Action.FREE_COMPLETED, small + 4096, 1000, 8, Category.UNKNOWN),
        (Action.SEGMENT_FREE, large, 20 * MIB, -1, Category.UNKNOWN),
        (Action.SNAPSHOT, 0, 0, -1, Category.UNKNOWN),
    ]
    action, address, size_bytes, block, category = zip(*rows, strict=True)
    phases = [Phase.BUILD] * 2 + [Phase.FORWARD] * 5 + [Phase.BACKWARD] * 3 + [Phase.OPTIMIZER] * 4
    return Trace.build(
        {
            "action": action,
            "address": address,
            "size_bytes": size_bytes,
            "block": block,
            "category": category,
            "step": [-1] * 2 + [0] * 8 + [1] * 4,
            "phase": phases,
            "op": [-1, -1, -1, 0, 1, *[-1] * 9],
            "module": [-1, -1, -1, 0, 1, *[-1] * 9],
        },
        ops=["aten::relu", "aten::conv2d"],
        modules=["layers.0", "layers.1"],
        segments={
            "address": [small],
            "total_size": [2 * MIB],
            "stream": [0],
            "is_large": [False],
            "is_expandable": [False],
        },
        blocks={
            "segment": [0, 0],
            "address": [small, small + 4096],
            "size_bytes": [4096, 2 * MIB - 4096],
            "requested_bytes": [4000, 0],
            "state": [BlockState.ACTIVE_ALLOCATED, BlockState.INACTIVE],
        },
    )


@pytest.fixture
def process_trace(job_trace: Trace) -> Trace:
    """Return the same job in a process: CONTEXT rows of 5 MiB before row 0 and of 3 MiB before row 12, which is row 13 then.

    row   action           size      context after   reserved after   process after
      0   CONTEXT          5 MiB        5 MiB             0              5 MiB
      1   SEGMENT_ALLOC    2 MiB                      2 MiB              7 MiB
      3   SEGMENT_ALLOC   20 MiB                     22 MiB             27 MiB
      5   ALLOC            1 MiB                                                  the peak of live
     13   CONTEXT          3 MiB        8 MiB        22 MiB             30 MiB    the peak of the process
     14   SEGMENT_FREE    20 MiB                      2 MiB             10 MiB
    """
    return with_context(job_trace, [(0, 5 * MIB), (12, 3 * MIB)])
