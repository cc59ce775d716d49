"""EMPTY_CACHE rows where a search for a convolution's plan released the cache, and its trial workspace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.simulation import simulate
from vramcast.simulator.what_if import min_feasible
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.tracer.recording.emptied_cache import with_searches

MIB = 1 << 20
CONVOLUTION, RELU = 0, 1


def searching(
    *, operator: int = CONVOLUTION, after: tuple[Action, int] | None = None, category: Category = Category.WORKSPACE
) -> Trace:
    """Return a trace of a result of 30 MiB and a trial of 100 MiB; its segment is released, and perhaps a row follows."""
    rows: list[tuple[Action, int, int, int]] = [
        (Action.SEGMENT_ALLOC, 30, -1, -1),
        (Action.ALLOC, 30, 1, operator),
        (Action.SEGMENT_ALLOC, 100, -1, -1),
        (Action.ALLOC, 100, 3, operator),
        (Action.FREE_REQUESTED, 100, 3, -1),
        (Action.FREE_COMPLETED, 100, 3, -1),
        (Action.SEGMENT_FREE, 100, -1, -1),
        *([(*after, -1, -1)] if after else []),
    ]
    action, size, block, op = zip(*rows, strict=True)
    columns: dict[str, Any] = {"action": action, "size_bytes": np.array(size) * MIB, "block": block, "op": op}
    columns["category"] = np.full(len(rows), category)
    return Trace.build(columns, ops=["aten::cudnn_convolution", "aten::relu"], header={"marks_empty_cache": True})


def emptied(trace: Trace) -> list[int]:
    """Return the EMPTY_CACHE rows of a trace."""
    return np.flatnonzero(trace.action == Action.EMPTY_CACHE).tolist()


def test_search_empties_cache_and_has_trial() -> None:
    found = with_searches(searching(category=Category.TEMPORARY), 200 * MIB)
    assert emptied(found) == [6]
    assert found.operator_at(6).name == "aten::cudnn_convolution"
    assert np.flatnonzero(found.is_search()).tolist() == [3]
    assert found.category[3] == Category.WORKSPACE
    assert Requests.of(found).kind.tolist() == [RequestKind.MALLOC, RequestKind.TRY, RequestKind.FREE, RequestKind.EMPTY]


@pytest.mark.parametrize(
    ("trace", "room_mib"),
    [
        pytest.param(searching(operator=RELU), 200, id="of another operator"),
        pytest.param(searching(after=(Action.OOM, 500)), 200, id="ran out of memory"),
        pytest.param(searching(after=(Action.SEGMENT_ALLOC, 80)), 200, id="made room for a segment"),
    ],
)
def test_other_releases_are_no_search(trace: Trace, room_mib: int) -> None:
    assert emptied(with_searches(trace, room_mib * MIB)) == []


def test_segment_with_enough_room_follows_search() -> None:
    assert emptied(with_searches(searching(after=(Action.SEGMENT_ALLOC, 60)), 200 * MIB)) == [6]


def test_block_of_no_plan_is_trial_on_full_card() -> None:
    full = searching(after=(Action.SEGMENT_ALLOC, 80), category=Category.TEMPORARY)
    assert emptied(with_searches(full, 200 * MIB)) == [6]


def test_own_call_is_no_search() -> None:
    marked = searching().insert([6], {"action": [Action.EMPTY_CACHE], "size_bytes": [0], "block": [-1]})
    assert emptied(with_searches(marked, 200 * MIB)) == [6]
    assert not marked.is_search().any()


@pytest.mark.parametrize("n", [0, 1])
def test_trace_without_releases_is_unchanged(n: int) -> None:
    trace = Trace.build({"action": [Action.ALLOC] * n, "size_bytes": [1] * n, "block": [*range(n)]})
    assert len(with_searches(trace, MIB)) == n


def test_trial_may_fail() -> None:
    before = searching(category=Category.TEMPORARY)
    found = with_searches(before, 200 * MIB)
    assert min_feasible(before) == 130 * MIB
    assert min_feasible(found) == 30 * MIB
    assert simulate(found).reserved == 130 * MIB
