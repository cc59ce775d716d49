"""Factors that influence the error, compared with textbook cases, and draws, compared with their sources."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.learner.evaluation.factors import Anova, Draws, Effect, anova, draws, interval
from vramcast.learner.evaluation.metrics import evaluate
from vramcast.learner.evaluation.scored_run import Scored

from .samples import GB, drawn_runs, run, scored_runs


def of_error(log_ratio: float, group: str = "a", optimizer: str = "sgd", gpu: str = "g", batch_size: int = 0) -> Scored:
    estimated = round(10 * GB * math.exp(log_ratio))
    return run(10 * GB, estimated, group=group, optimizer=optimizer, gpu=gpu, batch_size=batch_size)


def by_factor(found: Anova) -> dict[str, Effect]:
    return {effect.factor: effect for effect in found.effects}


def test_matches_balanced_case_by_hand() -> None:
    # Errors 1, 2, 3, 6 (in hundredths): means 1.5 and 4.5 by model, 2 and 4 by optimizer, 3 in all. Sums of squares: model
    # 4 x 1.5^2 = 9, optimizer 4 x 1 = 4, noise 14 - 13 = 1 with one degree: F is 9 and 4.
    runs = [of_error(0.01, "a"), of_error(0.02, "a", "adam"), of_error(0.03, "b"), of_error(0.06, "b", "adam")]
    found = anova(runs)
    effects = by_factor(found)
    assert (found.n, found.residual_degrees, list(effects)) == (4, 1, ["model", "optimizer"])
    assert effects["model"].f == pytest.approx(9, rel=1e-4)
    assert effects["optimizer"].f == pytest.approx(4, rel=1e-4)
    assert effects["model"].share == pytest.approx(0.9, rel=1e-4)
    assert effects["model"].degrees == effects["optimizer"].degrees == 1


def test_one_factor_matches_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(1)
    groups = {name: random.normal(shift, 0.03, 12) for name, shift in (("a", 0.0), ("b", 0.02), ("c", 0.01))}
    runs = [of_error(float(value), name) for name, values in groups.items() for value in values]
    (effect,) = anova(runs, n_permutations=4999).effects
    f, p = stats.f_oneway(*groups.values())
    assert effect.f == pytest.approx(f, rel=1e-4)
    assert effect.p_value == pytest.approx(p, abs=0.04)  # scipy assumes normal errors


def test_finds_effects_and_their_absence() -> None:
    random = np.random.default_rng(0)
    runs = [
        of_error(0.05 * (model == "a") + float(random.normal(0, 0.01)), model, optimizer, gpu, batch)
        for model, optimizer, gpu, batch in product("abc", ("sgd", "adam"), ("x", "y"), (2, 8, 32))
    ]
    effects = by_factor(anova(runs))
    assert list(effects) == ["model", "optimizer", "gpu", "batch"]
    assert effects["model"].p_value == 0.001
    assert effects["model"].share > 0.7
    assert all(p is not None and p > 0.05 for p in (effects[name].p_value for name in ("optimizer", "gpu", "batch")))


def test_batch_counts_by_logarithm() -> None:
    runs = [of_error(0.01 * math.log2(batch), model, batch_size=batch) for model in "ab" for batch in (1, 2, 4, 8, 16)]
    effect = by_factor(anova(runs))["batch"]
    assert effect.degrees == 1
    assert effect.share == pytest.approx(1, abs=1e-6)


def test_size_and_sign_of_error_differ() -> None:
    runs = [of_error(sign * size, model) for model, sign in (("a", 1), ("b", -1)) for size in (0.02, 0.021, 0.022, 0.023)]
    assert by_factor(anova(runs))["model"].p_value < 0.1
    assert by_factor(anova(runs, of="size"))["model"].p_value > 0.5


def test_determined_factor_has_no_degree_left() -> None:
    random = np.random.default_rng(0)
    runs = [of_error(float(random.normal(0, 0.01)), model, gpu=gpu) for model, gpu in ("ax", "bx", "cy") for _ in range(5)]
    effect = by_factor(anova(runs))["gpu"]
    assert (effect.degrees, effect.f, effect.p_value) == (0, None, None)
    assert effect.share == pytest.approx(0, abs=1e-9)


def test_omits_constant_and_unique_factors() -> None:
    assert anova([of_error(0.01, str(number)) for number in range(10)]).effects == ()
    assert anova([]) == Anova(0, (), 0)


def test_no_effect_without_error() -> None:
    effects = anova([of_error(0.0, model) for model in "ab" for _ in range(4)]).effects
    assert effects == (Effect("model", 1, 0.0, None, None),)


@settings(max_examples=40, deadline=None)
@given(scored_runs(), st.sampled_from(["error", "size"]))
def test_shares_and_p_values_are_between_0_and_1(runs: list[Scored], of: str) -> None:
    for effect in anova(runs, of=of, n_permutations=19).effects:
        assert 0 <= effect.share <= 1
        assert effect.p_value is None or 0.05 <= effect.p_value <= 1


def test_draws_of_one_model_have_its_metrics() -> None:
    runs = [replace(one, group="a") for one in drawn_runs(40)]
    found, figures = draws(runs, n_draws=3), evaluate(runs)
    assert found.mre == pytest.approx([figures["mre"]] * 3)
    assert found.pef == pytest.approx([figures["pef"]] * 3)


def test_draws_depend_only_on_seed() -> None:
    runs = drawn_runs(40)
    assert draws(runs, n_draws=5) == draws(runs, n_draws=5) != draws(runs, n_draws=5, seed=1)


def test_cluster_draws_vary_more_than_runs() -> None:
    runs = [of_error(0.01 * (1 + model % 4), f"model {model}") for model in range(8) for _ in range(40)]
    by_run = interval(draws([replace(one, group=str(at)) for at, one in enumerate(runs)], n_draws=200).mre)
    by_model = interval(draws(runs, n_draws=200).mre)
    assert by_run is not None
    assert by_model is not None
    assert by_model[1] - by_model[0] > by_run[1] - by_run[0]


def test_draws_omit_undecided_runs() -> None:
    censored = [run(100, 120, censored=True, id=str(number)) for number in range(4)]
    assert draws(censored, n_draws=5) == draws([]) == Draws((), ())
    assert interval(()) is None


def test_interval_is_central() -> None:
    assert interval(list(range(201))) == pytest.approx((5, 195))
