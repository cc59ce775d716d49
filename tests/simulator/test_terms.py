"""Edits of a trace as events: they move the peak where they happen."""

from __future__ import annotations

import numpy as np
import pytest

from vramcast.core.errors import UsageError
from vramcast.simulator.rules import MIB
from vramcast.simulator.trace_edits import first_row, resized, with_context
from vramcast.tracer.format.operators import OperatorKind
from vramcast.tracer.format.trace import Action, Trace

# 30 MiB; then 50 MiB for a while; then 10 MiB in addition to the 30.
ROWS = ((Action.ALLOC, 30, 0), (Action.ALLOC, 50, 1), (Action.FREE_REQUESTED, 50, 1), (Action.FREE_COMPLETED, 50, 1),
        (Action.ALLOC, 10, 4))  # fmt: skip
TRACE = Trace.build(
    {
        "action": [action for action, _, _ in ROWS],
        "size_bytes": [mib * MIB for _, mib, _ in ROWS],
        "block": [block for _, _, block in ROWS],
        "op": [0, 1, 1, 1, 2],
        "step": [0, 0, 0, 0, 1],
    },
    ops=["aten::mm", "aten::cudnn_convolution", "aten::add"],
)


def test_known_workspace_replaces_assumed_one() -> None:
    changed = resized(TRACE, {1: 70 * MIB})
    assert changed.peak_live() == (100 * MIB, 1)
    assert changed.size_bytes[1:4].tolist() == [70 * MIB] * 3
    gone = resized(TRACE, {1: 0})
    assert gone.size_bytes.tolist() == [30 * MIB, 10 * MIB]
    assert gone.block.tolist() == [0, 1]


def test_context_row_leaves_blocks_alone() -> None:
    more = with_context(TRACE, [(0, 400 * MIB), (1, 100 * MIB)])
    rows = np.flatnonzero(more.action == Action.CONTEXT)
    assert rows.tolist() == [0, 2]
    assert more.size_bytes[rows].tolist() == [400 * MIB, 100 * MIB]
    assert more.peak_live()[0] == TRACE.peak_live()[0]


def test_finds_operator_by_part_of_name() -> None:
    assert first_row(TRACE, lambda operator: operator.library.loaded == "cudnn") == 1
    assert first_row(TRACE, lambda operator: "add" in operator.name) == 4
    assert first_row(TRACE, lambda operator: operator.kind is OperatorKind.RECURRENT) is None


@pytest.mark.parametrize("row", [-1, 5])
def test_rejects_row_outside_trace(row: int) -> None:
    with pytest.raises(UsageError, match=f"Row {row} is not in the trace"):
        resized(TRACE, {row: 1})


def test_rejects_size_of_non_block() -> None:
    with pytest.raises(UsageError, match="not ALLOC rows"):
        resized(TRACE, {2: 1})
