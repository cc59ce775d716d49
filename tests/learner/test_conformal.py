from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.learner.conformal import (
    AdaptiveConformal,
    Calibration,
    Correction,
    Distribution,
    Scores,
    calibrate,
    models_needed,
)

LEVELS = (0.9, 0.95, 0.99)


def within_binomial(hits: int, n: int, level: float, deviations: float = 4.0) -> bool:
    return abs(hits - level * n) <= deviations * math.sqrt(n * level * (1 - level))


def scores_of(values: list[float], models: list[int]) -> Scores:
    return Scores.of(np.array(values), np.array(models))


def of_own_models(n: int) -> list[str]:
    return [str(i) for i in range(n)]


def test_score_is_order_statistic_of_theorem() -> None:
    scores = scores_of([float(i) for i in range(1, 100)], list(range(99)))
    assert scores.at(0.9) == 90.0  # ceil(100 x 0.9) = 90th of 99
    assert scores.at(0.99) == 99.0
    assert scores.at(0.995) == math.inf
    assert (scores.between(0.905), scores.between(1.0)) == (90.5, 99.0)
    assert (models_needed(0.9), models_needed(0.99), models_needed(0.5)) == (9, 99, 1)


def test_runs_of_one_model_count_as_one() -> None:
    many = scores_of([5.0] * 100 + [1.0, 2.0, 3.0], [0] * 100 + [1, 2, 3])
    assert many.n == pytest.approx(4)
    assert many.at(0.6) == 3.0
    assert many.at(0.8) == 5.0


def test_part_at_infinity_comes_from_parent_group() -> None:
    """27 exact models of a hundred: nine parts of ten are exact, the tenth is like all hundred, and a 101st of it beyond."""
    everyone = scores_of([0.0] * 50 + [1.0] * 50, list(range(100)))
    exact = scores_of([0.0] * 27, list(range(27)))
    found = Distribution.along([everyone, exact])
    assert found.at(0.9 + 0.1 * 50 / 101) == 0.0
    assert found.at(0.96) == 1.0
    assert found.at(1 - 0.09 / 101) == math.inf
    assert found.below(np.array([0.0, 0.5, 2.0])) == pytest.approx([0.0, 0.9 + 0.1 * 50 / 101, 1 - 0.1 / 101])
    assert (found.beyond(0.0), found.beyond(0.97), found.beyond(1.0)) == (0.0, 1.0, math.inf)


@pytest.mark.parametrize("level", LEVELS)
def test_new_runs_reach_coverage(level: float) -> None:
    """Heteroscedastic truth, a wrong quantile model: the bound holds all the same, and not much too often."""
    random = np.random.default_rng(7)
    hits = trials = 0
    for _ in range(60):
        x = random.uniform(0, 1, 400)
        y = x + random.standard_t(4, 400) * (0.1 + x)
        wrong = np.repeat(x[:, None], len(LEVELS), axis=1)  # ignores the spread
        calibration = calibrate(LEVELS, wrong[:300], y[:300], of_own_models(300), [{}] * 300)
        found = calibration.correction(level, {})
        assert (found.key, found.n, found.column, found.is_promised) == ("all runs", 300, LEVELS.index(level), True)
        hits += int((y[300:] <= wrong[300:, found.column] + found.value).sum())
        trials += 100
    # The calibration itself varies from draw to draw, which adds to the binomial's spread: n = 300 for each. It takes the
    # larger of two estimates of one quantile, which raises coverage by about half a deviation of such an estimate.
    slack = 4 * math.sqrt(1 + 100 / 300) * math.sqrt(trials * level * (1 - level))
    assert -slack <= hits - level * trials <= slack + trials * math.sqrt(level * (1 - level) / 300)


@pytest.fixture(scope="module")
def hits_of_two_groups() -> tuple[dict[tuple[str, float], int], int]:
    """Return the number of new runs of a calm and of a wild group that each level's bound covers, and their total."""
    random = np.random.default_rng(11)
    hits = dict.fromkeys(itertools.product(("calm", "wild"), LEVELS), 0)
    trials = 0
    for _ in range(25):
        y = {"calm": random.normal(0, 0.1, 400), "wild": random.normal(0, 2.0, 400)}
        residuals = np.concatenate([y["calm"][:300], y["wild"][:300]])
        traits = [{"kind": "calm", "noise": str(i % 3)} for i in range(300)] + [{"kind": "wild"}] * 300
        calibration = calibrate((0.5,), np.zeros((600, 1)), residuals, of_own_models(600), traits)
        for name, level in hits:
            found = calibration.correction(level, {"kind": name})
            assert found.n < 600  # a group of its own
            hits[name, level] += int((y[name][300:] <= found.value).sum())
        trials += 100
    return hits, trials


@pytest.mark.parametrize("level", LEVELS)
def test_finds_and_covers_different_groups(hits_of_two_groups: tuple[dict[tuple[str, float], int], int], level: float) -> None:
    hits, trials = hits_of_two_groups
    for name in ("calm", "wild"):
        assert hits[name, level] >= level * trials - 4 * math.sqrt(1 + 100 / 300) * math.sqrt(trials * level * (1 - level))


def test_guarantee_is_for_own_class() -> None:
    residuals = np.concatenate([np.zeros(200), np.linspace(0, 1, 20)])
    traits = [{"share": "none"}] * 200 + [{"share": "much"}] * 20
    calibration = calibrate((0.5,), np.zeros((220, 1)), residuals, of_own_models(220), traits)
    assert calibration.promises(0.99, {"share": "none"})
    assert calibration.promises(0.95, {"share": "much"})
    assert not calibration.promises(0.99, {"share": "much"})
    assert calibration.correction(0.99, {"share": "none"}).value == 0.0
    assert not calibration.correction(0.99, {"share": "much"}).is_promised


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 120), st.sampled_from((0.5, 0.9, 0.95, 0.99)))
def test_guarantee_is_limited_by_models(seed: int, n: int, level: float) -> None:
    random = np.random.default_rng(seed)
    residuals = random.standard_t(3, 3 * n)
    models = [str(i // 3) for i in range(3 * n)]  # three runs of each
    traits = [{"kind": str(kind)} for kind in random.integers(0, 3, 3 * n)]
    calibration = calibrate((0.5,), np.zeros((3 * n, 1)), residuals, models, traits)
    found = calibration.correction(level, {"kind": "0"})
    assert math.isfinite(found.value)
    assert found.is_promised == calibration.promises(level, {"kind": "0"}) or math.isclose(found.value, residuals.max())
    if n < models_needed(level):
        assert not found.is_promised
    if n < models_needed(level) and len(calibration.groups.path({"kind": "0"})) == 1:
        assert found.value == max(residuals.max(), 0.0)  # no other trait is given


def test_adds_nothing_to_exact_groups() -> None:
    residuals = np.concatenate([np.zeros(300), np.linspace(0, 1, 100)])
    traits = [{"plans": "none"}] * 300 + [{"plans": "other"}] * 100
    calibration = calibrate((0.5,), np.zeros((400, 1)), residuals, of_own_models(400), traits)
    assert calibration.correction(0.99, {"plans": "none"}).value == 0.0
    assert calibration.correction(0.99, {"plans": "other"}).value > 0.9
    assert Calibration.empty().correction(0.9, {}) == Correction(0, 0.0, "all runs", 0, False)


@pytest.mark.parametrize("level", [0.5, 0.83, 0.97, 0.999])
def test_guarantees_any_level(level: float) -> None:
    random = np.random.default_rng(5)
    n = 3000
    y = random.normal(0, 1, n)
    calibration = calibrate(LEVELS, np.tile([1.0, 1.5, 2.5], (n, 1)), y, of_own_models(n), [{}] * n)
    found = calibration.correction(level, {})
    bound = (1.0, 1.5, 2.5)[found.column] + found.value
    fresh = random.normal(0, 1, 20_000)
    assert within_binomial(int((fresh <= bound).sum()), 20_000, level, deviations=4 * math.sqrt(1 + 20_000 / n))


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=60),
    st.lists(st.integers(0, 3), min_size=60, max_size=60),
    st.floats(0.01, 0.98),
    st.floats(0.001, 0.01),
)
def test_higher_level_never_has_lower_bound(values: list[float], models: list[int], level: float, more: float) -> None:
    scores = scores_of(values, models[: len(values)])
    assert scores.at(level) <= scores.at(level + more)


@settings(max_examples=20)
@given(st.sampled_from((0.8, 0.9, 0.95)), st.integers(0, 10**6))
def test_adaptive_coverage_holds_under_drift(level: float, seed: int) -> None:
    """The stream's spread grows tenfold half way; a fixed bound would miss from then on."""
    random = np.random.default_rng(seed)
    past = np.sort(np.abs(random.normal(0, 1, 2000)))
    adaptive = AdaptiveConformal(level)
    covered = []
    for step in range(4000):
        bound = math.inf if adaptive.asked >= 1 else past[int(max(adaptive.asked, 0.0) * len(past))]
        value = abs(float(random.normal(0, 1 if step < 2000 else 10)))
        covered.append(value <= bound)
        adaptive.observe(covered=covered[-1])
    # Gibbs and Candes, proposition 4.1: the miss rate differs from 1 - level by at most (largest + rate) / (rate x steps).
    limit = (max(level, 1 - level) + adaptive.rate) / (adaptive.rate * len(covered))
    assert abs(np.mean(covered) - level) <= limit + 1e-9


def test_miss_raises_and_hit_lowers_level() -> None:
    adaptive = AdaptiveConformal(0.9, rate=0.5)
    assert adaptive.observe(covered=False) == pytest.approx(1.35)
    assert adaptive.observe(covered=True) == pytest.approx(1.3)
    with pytest.raises(ValueError, match=r"level is 1\.5"):
        AdaptiveConformal(1.5)
