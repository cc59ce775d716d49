"""Late terms enter as events: they move the peak where they happen."""

from __future__ import annotations

import numpy as np
import pytest

from vramcast.core.errors import UsageError
from vramcast.simulator.rules import MIB
from vramcast.simulator.simulation import simulate
from vramcast.simulator.trace_edits import first_row, resized, with_context, with_workspaces
from vramcast.tracer.format.operators import Kind
from vramcast.tracer.format.trace import Action, Category, Trace

# 30 MiB; then 50 MiB for a while; then 10 MiB beside the 30.
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


def test_a_workspace_moves_the_peak_to_where_it_happens() -> None:
    assert TRACE.peak_live() == (80 * MIB, 1)
    more = with_workspaces(TRACE, {4: 45 * MIB})
    assert more.peak_live() == (85 * MIB, 5)
    assert more.category[5] == Category.WORKSPACE
    assert (more.op[5:8] == 2).all()
    assert (more.step[5:8] == 1).all()
    assert more.action[5:8].tolist() == [Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    # Below the peak it changes nothing: no constant is added at the end.
    assert with_workspaces(TRACE, {4: 35 * MIB}).peak_live() == (80 * MIB, 1)
    assert simulate(with_workspaces(TRACE, {1: 5 * MIB})).allocated == 85 * MIB


def test_several_workspaces_keep_the_blocks_apart() -> None:
    more = with_workspaces(TRACE, {0: MIB, 1: 2 * MIB, 4: 3 * MIB})
    sizes = more.size_bytes[more.action == Action.ALLOC]
    assert sizes.tolist() == [30 * MIB, MIB, 50 * MIB, 2 * MIB, 10 * MIB, 3 * MIB]
    frees = more.action == Action.FREE_COMPLETED
    assert (more.size_bytes[more.block[frees]] == more.size_bytes[frees]).all()


def test_no_bytes_are_no_workspace() -> None:
    assert len(with_workspaces(TRACE, {0: 0})) == len(TRACE)


def test_a_known_workspace_takes_the_place_of_an_assumed_one() -> None:
    changed = resized(TRACE, {1: 70 * MIB})
    assert changed.peak_live() == (100 * MIB, 1)
    assert changed.size_bytes[1:4].tolist() == [70 * MIB] * 3
    gone = resized(TRACE, {1: 0})
    assert gone.size_bytes.tolist() == [30 * MIB, 10 * MIB]
    assert gone.block.tolist() == [0, 1]


def test_the_context_is_a_row_and_leaves_the_blocks_alone() -> None:
    more = with_context(TRACE, [(0, 400 * MIB), (1, 100 * MIB)])
    rows = np.flatnonzero(more.action == Action.CONTEXT)
    assert rows.tolist() == [0, 2]
    assert more.size_bytes[rows].tolist() == [400 * MIB, 100 * MIB]
    assert more.peak_live()[0] == TRACE.peak_live()[0]


def test_an_operator_is_found_by_a_word_of_its_name() -> None:
    assert first_row(TRACE, lambda operator: operator.library.loaded == "cudnn") == 1
    assert first_row(TRACE, lambda operator: "add" in operator.name) == 4
    assert first_row(TRACE, lambda operator: operator.kind is Kind.RECURRENT) is None


@pytest.mark.parametrize("row", [-1, 5])
def test_a_row_which_is_not_there_is_refused(row: int) -> None:
    with pytest.raises(UsageError, match=f"Row {row} is not in the trace"):
        with_workspaces(TRACE, {row: 1})


def test_only_a_block_has_a_size() -> None:
    with pytest.raises(UsageError, match="no ALLOC"):
        resized(TRACE, {2: 1})
