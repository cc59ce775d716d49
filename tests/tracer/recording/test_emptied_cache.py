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


TRIED = [2]  # after the request of the trial


def test_search_empties_cache_and_has_trial() -> None:
    found = with_searches(searching(category=Category.TEMPORARY), TRIED * 5)
    assert emptied(found) == [6]
    assert found.operator_at(6).name == "aten::cudnn_convolution"
    assert np.flatnonzero(found.is_search()).tolist() == [3]
    assert found.category[3] == Category.WORKSPACE
    assert Requests.of(found).kind.tolist() == [RequestKind.MALLOC, RequestKind.TRY, RequestKind.FREE, RequestKind.EMPTY]


def test_search_that_releases_nothing_empties_cache_too() -> None:
    before = searching(category=Category.TEMPORARY)
    kept = before.without_blocks(np.array([], np.int64))
    kept.action[6] = Action.SEGMENT_ALLOC  # the cache kept its segment, and a request takes another
    found = with_searches(kept, TRIED)
    assert emptied(found) == [6]
    assert np.flatnonzero(found.is_search()).tolist() == [3]


def test_search_without_workspace_empties_cache() -> None:
    found = with_searches(searching(), [1])
    assert emptied(found) == [2]
    assert not found.is_search().any()


@pytest.mark.parametrize(
    ("trace", "tried"),
    [
        pytest.param(searching(operator=RELU), TRIED, id="of another operator"),
        pytest.param(searching(), [], id="without a trial"),
        pytest.param(searching(), [0, 9], id="outside the history"),
        pytest.param(searching(), [3], id="a time taken after a convolution"),
    ],
)
def test_other_releases_are_no_search(trace: Trace, tried: list[int]) -> None:
    assert emptied(with_searches(trace, tried)) == []


@pytest.mark.parametrize("n", [0, 1])
def test_trace_without_releases_is_unchanged(n: int) -> None:
    trace = Trace.build({"action": [Action.ALLOC] * n, "size_bytes": [1] * n, "block": [*range(n)]})
    assert len(with_searches(trace, [1])) == n


def test_trial_may_fail() -> None:
    before = searching(category=Category.TEMPORARY)
    found = with_searches(before, TRIED)
    assert min_feasible(before) == 130 * MIB
    assert min_feasible(found) == 30 * MIB
    assert simulate(found).reserved == 130 * MIB
