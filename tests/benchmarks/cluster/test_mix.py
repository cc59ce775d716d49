"""Tests of mixes, ladders, and bounds from other models' errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster.mix import draw_mix, synthetic_runs, with_bounds
from benchmarks.cluster.policies import WHOLE_CARD, from_level, from_point, with_margin, with_retry
from vramcast.learner.evaluation.metrics import evaluate
from vramcast.learner.evaluation.scored_run import Scored


def run(number: int, group: str, measured: int, estimated: int = 100, *, family: str = "cnn", censored: bool = False) -> Scored:
    return Scored(str(number), group, family, "a100-40gb", "sgd", measured, estimated, censored=censored)


def test_adds_share_and_constant_as_margin() -> None:
    assert with_margin(100) == (100,)
    assert with_margin(100, 0.2, 7) == (127,)


def test_climbs_ladder_from_its_level() -> None:
    bounds = {0.99: 30, 0.5: 11, 0.9: 20, 0.8: 10}
    assert from_level(bounds, 0.9) == (20, 30)
    assert from_level(bounds, 0.999) == ()
    assert from_point(10, bounds) == (10, 20, 30)


def test_retry_adds_one_rung() -> None:
    assert with_retry((10, 20)) == (10, 20, 30)
    assert with_retry((10,), 2.0) == (10, 20)
    assert with_retry(WHOLE_CARD) == WHOLE_CARD


def test_mix_depends_only_on_seed() -> None:
    runs = synthetic_runs(4, 3)
    assert runs == synthetic_runs(4, 3) != synthetic_runs(4, 3, seed=1)
    first = draw_mix(runs, 50, mean_gap_s=60)
    assert first == draw_mix(runs, 50, mean_gap_s=60) != draw_mix(runs, 50, mean_gap_s=60, seed=1)


def test_jobs_take_measured_memory_in_order() -> None:
    mix = draw_mix(synthetic_runs(4, 3), 400, mean_gap_s=60)
    assert [job.peak_bytes for job in mix.jobs] == [one.measured_bytes for one in mix.runs]
    arrivals = [job.arrival_s for job in mix.jobs]
    assert arrivals == sorted(arrivals)
    assert np.mean(np.diff(arrivals)) == pytest.approx(60, rel=0.2)
    assert np.median([job.duration_s for job in mix.jobs]) == pytest.approx(1800, rel=0.25)
    assert {job.arrival_s for job in draw_mix(synthetic_runs(4, 3), 5, mean_gap_s=0).jobs} == {0.0}


def test_draws_groups_equally_often() -> None:
    runs = [run(i, "many", 100) for i in range(99)] + [run(100, "one", 100)]
    drawn = draw_mix(runs, 1000, mean_gap_s=1).runs
    assert 400 < sum(one.group == "one" for one in drawn) < 600


def test_skips_runs_of_unknown_size() -> None:
    runs = [run(0, "a", 100, censored=True), run(1, "b", 100)]
    assert {one.id for one in draw_mix(runs, 20, mean_gap_s=1).runs} == {"1"}
    assert draw_mix(runs[:1], 20, mean_gap_s=1).jobs == ()


def test_bound_is_quantile_of_other_models() -> None:
    others = [run(i, f"model {i}", 100 + i) for i in range(1, 10)]  # residuals 0.01 ... 0.09
    (mine,) = [one for one in with_bounds([run(0, "mine", 500), *others], [0.5, 0.75, 0.9, 0.99]) if one.group == "mine"]
    # n = 9: ranks 5, 8 (7.5 rounded up) and 9, and rank 10, which does not exist: the largest.
    assert mine.bounds == {0.5: 105, 0.75: 108, 0.9: 109, 0.99: 109}


def test_weights_other_models_equally() -> None:
    others = [*(run(i, "many", 200) for i in range(1, 30)), *(run(i, f"model {i}", 100 + i) for i in range(31, 39))]
    (mine,) = [one for one in with_bounds([run(0, "mine", 500), *others], [0.8]) if one.group == "mine"]
    assert mine.bounds == {0.8: 138}  # 9 models: rank 8, and "many" is above all others


def test_excludes_own_foreign_and_censored_runs() -> None:
    runs = [
        run(0, "mine", 900),
        run(1, "mine", 800),
        run(2, "other", 110),
        run(3, "censored", 700, censored=True),
        run(4, "transformer", 600, family="transformer"),
    ]
    bounds = {one.id: one.bounds for one in with_bounds(runs, [0.9])}
    assert bounds["0"] == bounds["1"] == {0.9: 110}
    assert bounds["3"] == {0.9: 900}
    assert bounds["4"] == {}


def test_made_up_bounds_hold_as_promised() -> None:
    coverage = evaluate(with_bounds(synthetic_runs(200, 5)))["coverage"]
    for level, share in coverage.items():
        assert share == pytest.approx(float(level), abs=0.04)


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_made_up_ladder_never_descends(seed: int) -> None:
    for one in with_bounds(synthetic_runs(4, 2, seed=seed)):
        ladder = from_level(one.bounds, 0.5)
        assert list(ladder) == sorted(ladder)
        assert len(ladder) == 4
