"""Seeded choices: equal in every version of Python, with the given frequencies."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.datasets.workloads.sampling import Draw
from vramcast.datasets.workloads.sizes import (
    GIB,
    HIGHEST_BYTES,
    LOWEST_BYTES,
    JobSize,
    draw_batch,
    draw_budget,
    draw_fitting,
    largest,
)


def test_stream_depends_on_its_key() -> None:
    assert [Draw(1, 2).integer(0, 10**9) for _ in range(2)] == [PINNED, PINNED]
    assert Draw(12).uniform(0, 1) != Draw(1, 2).uniform(0, 1)


PINNED = 88418273  # CPython 3.11 draws this number; another number in another Python would give another list


def test_weights_set_frequencies() -> None:
    draw = Draw("weights")
    counts = Counter(draw.weighted({"often": 90, "seldom": 10, "never": 0}) for _ in range(2000))
    assert 1700 < counts["often"] < 1900
    assert counts["never"] == 0


@given(st.integers(), st.integers(0, 100), st.integers(0, 100))
def test_choices_stay_within_bounds(key: int, low: int, more: int) -> None:
    draw = Draw(key)
    assert low <= draw.integer(low, low + more) <= low + more
    assert low <= draw.uniform(low, low + more) <= low + more
    assert low + 1 <= draw.log_uniform(low + 1, low + 1 + more) * (1 + 1e-9)
    assert draw.choice((low,)) == low
    assert sorted(draw.shuffled(range(more))) == list(range(more))


# ------------------------------------------------------------------------------------------------ sizes
def test_sizes_are_log_uniform() -> None:
    budgets = [draw_budget(Draw(index)) for index in range(2000)]
    totals = sorted(budget.state_bytes + budget.batch_bytes for budget in budgets)
    assert LOWEST_BYTES <= totals[0] < 0.12 * GIB
    assert 90 * GIB < totals[-1] <= HIGHEST_BYTES * (1 + 1e-9)
    assert totals[1000] == pytest.approx((LOWEST_BYTES * HIGHEST_BYTES) ** 0.5, rel=0.25)
    assert 0.7 < sum(total < 24 * GIB for total in totals) / 2000 < 0.9


def test_parameters_fill_the_state() -> None:
    assert JobSize(1600, 0).parameters(16) == 100


def test_batch_gets_memory_left_by_state() -> None:
    assert JobSize(100, 50).less(30) == JobSize(30, 120)
    assert JobSize(100, 50).less(200) == JobSize(200, 0)


@given(st.floats(0, 1e6), st.integers(1, 50), st.integers(1, 60), st.integers(1, 9))
def test_largest_width_is_within_budget(budget: float, low: int, steps: int, multiple: int) -> None:
    widths = [width for width in range(low, low + steps * multiple + 1) if width % multiple == 0]
    fitting = [width for width in widths if width**2 <= budget]
    assert largest(lambda width: width**2, budget, low, widths[-1], multiple) == (fitting or widths)[-1 if fitting else 0]


@given(st.integers(), st.floats(1, 1e9), st.floats(1, 1e9), st.integers(1, 4), st.integers(4, 1000))
def test_batch_fits_if_possible(key: int, batch_bytes: float, sample_bytes: float, lowest: int, highest: int) -> None:
    batch = draw_batch(Draw(key), batch_bytes, sample_bytes, lowest=lowest, highest=highest)
    assert lowest <= batch <= highest
    assert batch * sample_bytes <= max(batch_bytes, lowest * sample_bytes)


def test_side_keeps_batch_in_bounds() -> None:
    sides = (8, 16, 32, 64)
    drawn = {draw_fitting(Draw(key), sides, 10_000, lambda side: side**2, 8, 100) for key in range(100)}
    assert drawn == {16, 32}
    assert draw_fitting(Draw(0), sides, 10, lambda side: side**2, 8, 100) == 8
    assert draw_fitting(Draw(0), sides, 1e9, lambda side: side**2, 8, 100) == 64
