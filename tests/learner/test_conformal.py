from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.learner.conformal import ALL, TOO_FEW, Adaptive, Calibration, Correction, Scores, calibrate, keys_of, needed

LEVELS = (0.9, 0.95, 0.99)


def within_binomial(hits: int, n: int, level: float, deviations: float = 4.0) -> bool:
    return abs(hits - level * n) <= deviations * math.sqrt(n * level * (1 - level))


def test_a_score_is_the_order_statistic_which_the_theorem_names() -> None:
    scores = Scores.of([float(i) for i in range(1, 100)], [str(i) for i in range(99)])
    assert scores.at(0.9) == 90.0  # ceil(100 x 0.9) = 90th of 99
    assert scores.at(0.99) == 99.0
    assert scores.at(0.995) == math.inf
    assert (needed(0.9), needed(0.99), needed(0.5)) == (9, 99, 1)


def test_runs_of_one_group_count_as_one() -> None:
    many = Scores.of([5.0] * 100 + [1.0, 2.0, 3.0], ["a"] * 100 + ["b", "c", "d"])
    assert many.n == pytest.approx(4)
    assert many.at(0.6) == 3.0
    assert many.at(0.8) == 5.0


@pytest.mark.parametrize("level", LEVELS)
def test_coverage_of_new_runs_is_what_was_promised(level: float) -> None:
    """Heteroscedastic truth, a wrong quantile model: the bound holds all the same, and not much too often."""
    random = np.random.default_rng(7)
    hits = trials = 0
    for _ in range(60):
        x = random.uniform(0, 1, 400)
        y = x + random.standard_t(4, 400) * (0.1 + x)
        wrong = np.repeat(x[:, None], len(LEVELS), axis=1)  # takes no note of the spread
        groups = [str(i) for i in range(300)]
        calibration = calibrate(LEVELS, wrong[:300], y[:300], groups, [()] * 300)
        found = calibration.correction(level, ())
        assert (found.key, found.n, found.column) == ("all runs", pytest.approx(300), LEVELS.index(level))
        hits += int((y[300:] <= wrong[300:, found.column] + found.value).sum())
        trials += 100
    # The calibration itself varies from draw to draw, which adds to the binomial's spread: n = 300 for each.
    assert within_binomial(hits, trials, level, deviations=4 * math.sqrt(1 + 100 / 300))


@pytest.mark.parametrize("level", LEVELS)
def test_coverage_holds_in_each_group_with_enough_runs(level: float) -> None:
    random = np.random.default_rng(11)
    hits = {"calm": 0, "wild": 0}
    trials = 0
    for _ in range(40):
        y = {"calm": random.normal(0, 0.1, 400), "wild": random.normal(0, 2.0, 400)}
        residuals = np.concatenate([y["calm"][:300], y["wild"][:300]])
        keys = [("calm",)] * 300 + [("wild",)] * 300
        zero = np.zeros((600, len(LEVELS)))
        calibration = calibrate(LEVELS, zero, residuals, [str(i) for i in range(600)], keys)
        for name in hits:
            found = calibration.correction(level, (name,))
            assert found.key == name
            hits[name] += int((y[name][300:] <= found.value).sum())
        trials += 100
    for name in hits:
        assert within_binomial(hits[name], trials, level, deviations=4 * math.sqrt(1 + 100 / 300))


def test_small_groups_fall_back_to_coarser_ones_and_say_which() -> None:
    residuals = np.concatenate([np.full(5, 9.0), np.linspace(0, 1, 200)])
    keys = [keys_of("h200", "rare")] * 5 + [keys_of("h200", "common")] * 200
    calibration = calibrate((0.9, 0.999), np.zeros((205, 2)), residuals, [str(i) for i in range(205)], keys)
    assert calibration.correction(0.9, keys_of("h200", "common")).key == "h200|common"
    assert calibration.correction(0.9, keys_of("a100", "common")).key == "common"
    assert calibration.correction(0.9, keys_of("h200", "rare")).key == "all runs"
    assert calibration.correction(0.999, keys_of("h200", "common")) == Correction(1, 9.0, TOO_FEW, pytest.approx(205))
    assert Calibration((0.9,), ({ALL: Scores((), ())},)).correction(0.9, ()) == Correction(0, 0.0, TOO_FEW, 0)


def test_what_is_unknown_gives_no_key_and_is_never_taken_for_all_runs() -> None:
    assert keys_of("h200", "") == keys_of("", "") == ()
    assert keys_of("", "cnn") == ("cnn",)
    assert keys_of("h200", "cnn", "cnn") == ("h200|cnn", "cnn")
    assert ALL not in (*keys_of("h200", "", "matmul"), *keys_of("", "", "matmul"))


@pytest.mark.parametrize("level", [0.5, 0.83, 0.97, 0.999])
def test_any_level_is_promised_not_only_the_learners(level: float) -> None:
    random = np.random.default_rng(5)
    n = 3000
    y = random.normal(0, 1, n)
    calibration = calibrate(LEVELS, np.tile([1.0, 1.5, 2.5], (n, 1)), y, [str(i) for i in range(n)], [()] * n)
    found = calibration.correction(level, ())
    bound = (1.0, 1.5, 2.5)[found.column] + found.value
    fresh = random.normal(0, 1, 20_000)
    assert within_binomial(int((fresh <= bound).sum()), 20_000, level, deviations=4 * math.sqrt(1 + 20_000 / n))


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=60),
    st.lists(st.sampled_from("abcd"), min_size=60, max_size=60),
    st.floats(0.01, 0.98),
    st.floats(0.001, 0.01),
)
def test_a_higher_level_never_has_a_lower_bound(values: list[float], groups: list[str], level: float, more: float) -> None:
    scores = Scores.of(values, groups[: len(values)])
    assert scores.at(level) <= scores.at(level + more)


@settings(max_examples=20)
@given(st.sampled_from((0.8, 0.9, 0.95)), st.integers(0, 10**6))
def test_adaptive_coverage_holds_under_drift(level: float, seed: int) -> None:
    """The stream's spread grows tenfold half way; a fixed bound would miss ever after."""
    random = np.random.default_rng(seed)
    past = np.sort(np.abs(random.normal(0, 1, 2000)))
    adaptive = Adaptive(level)
    covered = []
    for step in range(4000):
        bound = math.inf if adaptive.asked >= 1 else past[int(max(adaptive.asked, 0.0) * len(past))]
        value = abs(float(random.normal(0, 1 if step < 2000 else 10)))
        covered.append(value <= bound)
        adaptive.observe(covered=covered[-1])
    # Gibbs and Candes, proposition 4.1: the miss rate differs from 1 - level by at most (largest + rate) / (rate x steps).
    limit = (max(level, 1 - level) + adaptive.rate) / (adaptive.rate * len(covered))
    assert abs(np.mean(covered) - level) <= limit + 1e-9


def test_a_miss_asks_for_more_and_a_hit_for_a_little_less() -> None:
    adaptive = Adaptive(0.9, rate=0.5)
    assert adaptive.observe(covered=False) == pytest.approx(1.35)
    assert adaptive.observe(covered=True) == pytest.approx(1.3)
    with pytest.raises(ValueError, match=r"level is 1\.5"):
        Adaptive(1.5)
