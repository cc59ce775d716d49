"""Residuals between two ends, and the scale on which small and large jobs are compared."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.learner.conftest import MIB
from vramcast.learner import stacks
from vramcast.learner.examples import Example
from vramcast.learner.intervals import between, placed
from vramcast.learner.scale import OFFSET_BYTES, peak_of, residual_of
from vramcast.learner.table import table_of

MakeExamples = Callable[..., list[Example]]
PAIRS = st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=30)


@given(PAIRS)
def test_place_is_between_the_ends(pairs: list[tuple[float, float]]) -> None:
    low = np.array([pair[0] for pair in pairs])
    high = low + np.array([pair[1] for pair in pairs])
    found = placed(low, high, np.ones(len(low)))
    assert (low <= found).all()
    assert (found <= high + 1e-12).all()
    assert (found[low == high] == low[low == high]).all()


def test_place_is_where_other_jobs_are() -> None:
    """Wide intervals around zero say little; nine known residuals say where they lie."""
    low, high = np.array([*[0.01] * 9, -0.3, 0.2]), np.array([*[0.01] * 9, 0.4, 0.5])
    found = placed(low, high, np.ones(11))
    assert found[9] == pytest.approx(0.01)
    assert 0.2 <= found[10] <= 0.5


@pytest.mark.parametrize("level", [0.1, 0.9, 0.95])
def test_places_spread_as_the_residuals_do(level: float) -> None:
    """Medians of wide intervals lie close together: a bound from them would hold far less often than it says."""
    drawn = np.random.default_rng(0)
    errors = []
    for _ in range(20):
        residuals = drawn.normal(0, 0.05, 200)
        low = residuals - 0.3 * drawn.random(200)
        found = placed(low, low + 0.3, np.ones(200))
        errors.append(np.quantile(found, level) - np.quantile(residuals, level))
    assert np.mean(errors) == pytest.approx(0, abs=0.01)


def test_lower_end_alone_is_placed_among_those_above_it() -> None:
    """Out of memory at half of the estimate: not a run that needs half, but one like the others."""
    low = np.array([-0.1, 0.0, 0.1, 0.2, 0.3, -0.7, 0.15, 0.5])
    high = np.array([-0.1, 0.0, 0.1, 0.2, 0.3, math.inf, math.inf, math.inf])
    assert placed(low, high, np.ones(8)).tolist() == [-0.1, 0.0, 0.1, 0.2, 0.3, 0.2, 0.3, 0.5]


def test_lower_ends_alone_stay() -> None:
    assert placed(np.array([0.0, 0.5]), np.full(2, math.inf), np.ones(2)).tolist() == [0.0, 0.5]


@given(st.integers(1, 10**12), st.integers(1, 10**12))
def test_scale_is_inverted(measured: int, base: int) -> None:
    again = peak_of(residual_of(measured, base, OFFSET_BYTES), base, OFFSET_BYTES)
    assert float(again) == pytest.approx(measured, rel=1e-6, abs=1e-9 * (base + OFFSET_BYTES))


def test_same_bytes_weigh_less_in_a_large_job_and_no_more_than_a_bounded_share_in_a_small_one() -> None:
    more = 16 * MIB
    tiny, small, large = (float(residual_of(base + more, base, OFFSET_BYTES)) for base in (MIB, 200 * MIB, 20_000 * MIB))
    assert tiny < 0.032
    assert large < 0.001 < small < tiny


def test_batch_that_ran_and_one_that_failed_are_one_run_between_two_ends(make_examples: MakeExamples) -> None:
    ran, failed = make_examples(2)[:2]
    limit = (ran.reserved + failed.reserved) // 2
    small, large = sorted((ran, failed), key=lambda one: one.reserved)
    edge = between(small, large, limit)
    assert (edge.id, edge.censored, edge.measured_reserved) == (large.id, True, limit)
    assert edge.at_most is not None
    assert edge.at_most > large.reserved > limit
    table = table_of([edge, *make_examples(4, seed=1)], stacks.learn([]))
    assert table.low[0] < table.y[0] < table.high[0]
    assert not table.can_teach[0]  # its ends are the card's
    assert not table.censored[0]
