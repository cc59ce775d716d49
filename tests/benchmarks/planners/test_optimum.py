"""Tests of the lowest possible pool, and of the planner's distance to it."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from benchmarks.peers.planners import optimum
from tests.plans.blocks import lifetimes
from vramcast.core.errors import UsageError
from vramcast.plans import pool_checker
from vramcast.plans.lifetimes import Lifetimes
from vramcast.plans.packing import Items, place
from vramcast.plans.pool import PoolPlan, plan


@st.composite
def dense(draw: st.DrawFn, max_blocks: int) -> Lifetimes:
    """Draw blocks that overlap in all ways, with few sizes: peak live is often unattainable."""
    n = draw(st.integers(1, max_blocks))
    times = np.array(draw(st.permutations(range(2 * n))), np.int64).reshape(n, 2)
    times = np.sort(times[np.argsort(times.min(axis=1))], axis=1)
    sizes = np.array(draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)), np.int64) * 512
    return Lifetimes(times[:, 0], sizes, times[:, 0], times[:, 1], 2 * n)


def follow(blocks: Lifetimes, found: optimum.Optimum) -> list[str]:
    """Return the judge's findings for an optimum."""
    return pool_checker.check(blocks, PoolPlan(found.offset_bytes, blocks.size_bytes, found.height_bytes, "optimum", 0.0))


@hypothesis_settings(deadline=None, max_examples=50)
@given(blocks=dense(6))
def test_exact_search_equals_best_of_all_orders(blocks: Lifetimes) -> None:
    found = optimum.exact(blocks)
    assert follow(blocks, found) == []
    items = Items(blocks.size_bytes, np.arange(len(blocks) + 1), blocks.birth, blocks.death)
    fit = np.zeros(len(blocks), np.uint8)
    placed = [place(items, np.array(order), fit).offset_bytes for order in permutations(range(len(blocks)))]
    assert found.height_bytes == found.bound_bytes == min(int((offset + blocks.size_bytes).max()) for offset in placed)


@hypothesis_settings(deadline=None, max_examples=100)
@given(blocks=st.one_of(dense(9), lifetimes(9, 4000)))
def test_plans_within_one_percent_of_optimum(blocks: Lifetimes) -> None:
    best = optimum.exact(blocks)
    assert follow(blocks, best) == []
    assert best.height_bytes <= plan(blocks).height_bytes <= 1.01 * best.height_bytes


def test_peak_live_is_not_always_attainable() -> None:
    birth = np.array([3, 4, 6, 7, 8, 10, 11, 14, 17])  # found by random search
    death = np.array([8, 6, 11, 12, 10, 13, 16, 20, 19])
    blocks = Lifetimes(birth, 512 * np.array([5, 5, 1, 2, 1, 3, 5, 5, 2]), birth, death, 20)
    found = optimum.exact(blocks)
    assert (found.height_bytes, blocks.peak_live()[0]) == (11 * 512, 10 * 512)
    assert plan(blocks).height_bytes == found.height_bytes


def test_rejects_too_many_blocks() -> None:
    many = np.arange(11)
    with pytest.raises(UsageError, match="11 blocks are too many"):
        optimum.exact(Lifetimes(many, np.full(11, 512), many, many + 1, 12))


@pytest.mark.release
@hypothesis_settings(deadline=None, max_examples=15)
@given(blocks=dense(9))
def test_cp_sat_agrees_with_exact_search(blocks: Lifetimes) -> None:
    pytest.importorskip("ortools")
    found = optimum.solve(blocks, 20)
    assert follow(blocks, found) == []
    assert found.height_bytes == found.bound_bytes == optimum.exact(blocks).height_bytes
