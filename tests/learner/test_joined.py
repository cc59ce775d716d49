"""Parts with independent errors, and their sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.learner import sum_quantile
from vramcast.learner.conformal import Calibration
from vramcast.learner.model import Head, LearnedModel, Subject
from vramcast.learner.sum_quantile import LEVELS, at, by_level, uniform
from vramcast.tracer.protocol.job_result import UNKNOWN_SHARE


def test_one_part_is_its_own_sum() -> None:
    part = by_level(lambda level: 1000 * level**9)
    for level in (0.5, 0.75, 0.9, 0.95, 0.99, 0.999):
        assert at(sum_quantile.joined([part, np.zeros(len(LEVELS))]), level) == pytest.approx(1000 * level**9)
    assert sum_quantile.joined([]).tolist() == [0.0] * len(LEVELS)


def test_adds_certain_parts_fully() -> None:
    assert at(sum_quantile.joined([np.full(len(LEVELS), 7.0), uniform(100)]), 0.9) == pytest.approx(7 + at(uniform(100), 0.9))


def test_sum_is_below_both_worst_cases() -> None:
    """Compared with a hundred thousand draws of two independent parts, which are zero below their medians."""
    random = np.random.default_rng(1)
    shares = random.uniform(0, 1, (2, 100_000))
    draws = [np.where(share > 0.5, scale * (share - 0.5) / 0.5, 0) for share, scale in zip(shares, (100, 60), strict=True)]
    total = sum_quantile.joined([uniform(100), uniform(60)])
    for level in (0.9, 0.95, 0.99):
        bound = at(total, level)
        assert bound < at(uniform(100), level) + at(uniform(60), level)
        assert level <= (draws[0] + draws[1] <= bound).mean() <= level + 0.03  # a cell's upper end represents all of it


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=4), st.floats(0.01, 0.999), st.floats(0.0001, 0.0009))
def test_sum_is_monotone(sizes: list[float], level: float, more: float) -> None:
    total = sum_quantile.joined([uniform(size) for size in sizes])
    assert at(total, level) <= at(total, level + more)
    assert at(total, level) >= max(at(uniform(size), level) for size in sizes) * (1 - 1e-9)


def test_unanswered_calls_widen_both_bounds() -> None:
    # Everything else is certain, so that the bound is the point plus the part of the unanswered calls, whatever else was
    # learned.
    head = Head(None, Calibration.empty())
    learned = LearnedModel(head, process_head=head)
    answered, two_open = (Subject({}, 1_000_000_000, context=500_000_000, unknown=n) for n in (0, 2))
    for bounds in (learned.bounds, learned.process_bounds):
        wider = bounds(two_open, [0.9])[0].size_bytes - bounds(answered, [0.9])[0].size_bytes
        assert wider == pytest.approx(at(uniform(2 * UNKNOWN_SHARE * 1_000_000_000), 0.9), rel=1e-3)
