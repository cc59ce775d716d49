"""Detection of the iteration in requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vramcast.plans.lifetimes import Lifetimes
from vramcast.plans.repetition import find, longest_square, requests_of
from vramcast.tracer.format.trace import Action, Trace

from .blocks import trace_of, training


def slow_longest_square(tokens: list[int], min_period: int) -> tuple[int, int, int] | None:
    """Return the result expected of `longest_square`, by trying every start, period and end."""
    n = len(tokens)
    found = []
    for period in range(min_period, n // 2 + 1):
        for start in range(n - 2 * period + 1):
            if tokens[start : start + period] != tokens[start + period : start + 2 * period]:
                continue
            end = start + 2 * period
            while end < n and tokens[end] == tokens[end - period]:
                end += 1
            while start and tokens[start - 1] == tokens[start - 1 + period]:
                start -= 1
            if any(tokens[start + less : end] == tokens[start : end - less] for less in range(1, min_period)):
                continue
            found.append((-((end - start) // (2 * period)) * period, period, start, end))
    if not found:
        return None
    _, period, start, end = min(found)
    return start, end, period


@given(
    pieces=st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(1, 5)), max_size=6),
    min_period=st.integers(1, 6),
)
@example(pieces=[([0, 1], 2), ([0], 1)], min_period=2)
@example(pieces=[([0, 0, 1], 1), ([0, 0, 0], 1)], min_period=3)  # equal except for the last: not a repetition
def test_longest_repetition_matches_slow_search(pieces: list[tuple[list[int], int]], min_period: int) -> None:
    tokens = [token for piece, times in pieces for token in piece * times]
    assert longest_square(tokens, min_period) == slow_longest_square(tokens, min_period)


def test_run_of_equal_requests_is_no_iteration() -> None:
    assert longest_square([7] * 1000) is None
    assert longest_square([7, 8, 9] * 400) is None
    assert longest_square([7] * 500 + [1, *[7] * 150, 2] * 2) == (500, 804, 152)


def test_finds_long_periods() -> None:
    random = np.random.default_rng(1)
    warm_up, one, rest = random.integers(0, 50, 70), random.integers(0, 50, 333), random.integers(0, 50, 40)
    tokens = np.concatenate([warm_up, *[one] * 5, one[:100], [99], rest])
    assert longest_square(tokens) == (70, 70 + 5 * 333 + 100, 333)


def test_requests_become_sizes_and_distances() -> None:
    trace = trace_of(
        [
            (Action.ALLOC, 700, 0),
            (Action.SEGMENT_ALLOC, 2 << 20, -1),
            (Action.ALLOC, 8, 2),
            (Action.FREE_REQUESTED, 700, 0),
            (Action.FREE_COMPLETED, 9, -1),
            (Action.FREE_COMPLETED, 8, 2),
            (Action.FREE_COMPLETED, 700, 0),
        ]
    )
    rows, tokens = requests_of(trace)
    assert (rows.tolist(), tokens.tolist()) == ([0, 2, 3, 5], [700, 8, -2, -2])


@pytest.mark.parametrize(("n_steps", "count"), [(4, 2), (6, 4), (9, 7)])
def test_iteration_matches_step_marks(n_steps: int, count: int) -> None:
    trace = training(n_steps)
    found = find(trace)
    assert found is not None
    rows, _ = requests_of(trace)
    per_step = np.bincount(trace.step[rows][trace.step[rows] >= 1])
    assert {found.period} == set(per_step[1:].tolist())
    assert found.count == count
    marks = np.flatnonzero(np.diff(trace.step)) + 1
    assert set(np.diff(found.borders).tolist()) == set(np.diff(marks).tolist()[1:])
    assert rows[found.start] == found.borders[0] >= marks[1]


def test_recorded_job_matches_step_marks(auto_tracer: str) -> None:
    import torch

    from vramcast import TensorSpec, estimate

    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(12)])
    trace = estimate(model, TensorSpec((8, 64)), labels=TensorSpec((8, 64)), steps=5, tracer=auto_tracer).trace
    found = find(trace)
    assert found is not None
    rows, _ = requests_of(trace)
    assert {found.period} == set(np.bincount(trace.step[rows][trace.step[rows] >= 0])[1:-1].tolist())
    assert found.count >= 3


def test_borders_lie_where_few_bytes_live() -> None:
    trace = training(8)
    found = find(trace)
    assert found is not None
    live = Lifetimes.of(trace).live()
    marks = np.flatnonzero(np.diff(trace.step)) + 1
    assert live[found.borders[1] - 1] < live[marks[3] - 1]


def test_ignores_step_marks() -> None:
    trace = training(6)
    marked, unmarked = find(trace), find(replace(trace, step=np.full(len(trace), -1, np.int32)))
    assert marked is not None
    assert unmarked is not None
    assert marked.borders.tolist() == unmarked.borders.tolist()


def test_one_step_has_no_repetition() -> None:
    assert find(training(1, n_layers=20)) is None
    assert find(Trace.build({"action": [], "size_bytes": [], "block": []})) is None
