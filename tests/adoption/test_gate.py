"""A worse artifact is rejected, a better one is not, and chance alone rejects none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xgboost")

from vramcast.adoption import gate
from vramcast.adoption.policies import costs
from vramcast.adoption.verdict import Figures
from vramcast.core.errors import DatasetError
from vramcast.core.plain import from_plain, to_plain
from vramcast.learner.evaluation.scored_run import Scored

GIB = 1 << 30
LEVELS = (0.5, 0.9, 0.95, 0.99)


def scored(models: int, *, seed: int = 0, wide: float = 1.0, true_to: float = 0.0, runs: int = 4) -> list[Scored]:
    """Return runs whose bounds are true quantiles, shifted by `true_to` spreads and `wide` times as far out."""
    random = np.random.default_rng(seed)
    normal = {0.5: 0.0, 0.9: 1.2816, 0.95: 1.6449, 0.99: 2.3263}
    found = []
    for model in range(models):
        for number in range(runs):
            peak = round(10 * GIB * np.exp(0.05 * random.normal()))
            bounds = {level: round(10 * GIB * np.exp(0.05 * (wide * at + true_to))) for level, at in normal.items()}
            name = f"{model}/{number}"
            found.append(Scored(name, f"m{model}", "mlp", "h200", "sgd", peak, 10 * GIB, bounds, card_bytes=80 * GIB))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_true_bounds_pass_despite_chance(seed: int) -> None:
    assert gate.promise(gate.by_model(scored(150, seed=seed))) == []


def test_rejects_low_bounds_at_guaranteed_levels() -> None:
    reasons = gate.promise(gate.by_model(scored(150, true_to=-1.0)))
    assert [reason.split()[3] for reason in reasons] == ["0.9", "0.95", "0.99"]
    assert "of the runs of 150 models" in reasons[0]
    few = gate.promise(gate.by_model(scored(30, true_to=-1.0)))
    assert [reason.split()[3] for reason in few] == ["0.9", "0.95"]  # 0.99 needs 99 models


def test_rejects_worse_but_not_equal_artifact() -> None:
    old = gate.by_model(scored(100))
    assert gate.compared(old, old, "these").reasons == []
    assert gate.compared(gate.by_model(scored(100, wide=0.98)), old, "these").reasons == []
    wide = gate.compared(gate.by_model(scored(100, wide=3.0)), old, "these")
    assert ["quantile loss" in reason for reason in wide.reasons] == [True]
    low = gate.compared(gate.by_model(scored(100, true_to=-1.0)), old, "these")
    assert any("covers" in reason and "current" in reason for reason in low.reasons)
    assert low.figures["coverage"]["0.9"] < low.figures["coverage_present"]["0.9"]


def test_few_models_reject_only_far_worse() -> None:
    good = gate.by_model(scored(4))
    assert gate.compared(gate.by_model(scored(4, wide=1.3)), good, "these").reasons == []
    assert "100 % worse" in gate.compared(gate.by_model(scored(4, wide=9.0)), good, "these").reasons[0]
    assert gate.compared({}, good, "these").reasons == []


def test_rejects_artifact_with_fewer_models() -> None:
    models = gate.by_model(scored(40))
    assert gate.narrower(models, models) == gate.narrower(models, {}) == []
    assert gate.narrower({name: models[name] for name in [*models][:38]}, models) == []  # one in twenty
    assert "3 of the 40 models" in gate.narrower({name: models[name] for name in [*models][:37]}, models)[0]
    assert "no run can be evaluated" in gate.narrower({}, {})[0]


def test_ignores_bounds_without_guarantee() -> None:
    low = scored(150, true_to=-1.0)
    assert gate.promise(gate.by_model(gate.promised(low))) == []
    kept = [replace(run, promised=frozenset({0.9})) for run in low]
    assert [reason.split()[3] for reason in gate.promise(gate.by_model(gate.promised(kept)))] == ["0.9"]


def test_round_trips_figures() -> None:
    models = gate.by_model(scored(3))
    figures = Figures(5, models)
    assert from_plain(Figures, json.loads(json.dumps(to_plain(figures)))) == figures
    others: list[Any] = [None, [], {"m": 1}, {"m": {"runs": "x", "held": {}, "pinball": None}}, {"m": {"runs": 1}}]
    for wrong in others:
        with pytest.raises(DatasetError, match="Figures"):
            from_plain(Figures, {"runs": 5, "models": wrong})


def test_each_model_counts_as_one() -> None:
    runs = [run for run in scored(2, runs=100) if run.group == "m0" or run.id == "m1/0"]
    runs += [replace(run, bounds=dict.fromkeys(LEVELS, 1)) for run in scored(2, runs=1) if run.group == "m1"]
    assert gate.coverage(gate.by_model(runs))["0.99"] == pytest.approx(0.5, abs=0.02)


def test_exceeded_bound_costs_more_than_wide_one() -> None:
    def loss(level: float, size_bytes: int) -> float | None:
        run = Scored("a", "m", "mlp", "h200", "sgd", 10 * GIB, 10 * GIB, {level: size_bytes})
        return gate.by_model([run])["m"].pinball

    # The quantile loss at level 0.9: nine tenths of the shortfall, one tenth of the excess.
    assert loss(0.9, 9 * GIB) == pytest.approx(0.9 * 0.1)
    assert loss(0.9, 11 * GIB) == pytest.approx(0.1 * 0.1)
    assert loss(0.99, 9 * GIB) == pytest.approx(0.99 * 0.1)


# ------------------------------------------------------------------------------------------------ cost of requests
def test_counts_gib_hours_including_second_attempts() -> None:
    bounds = {0.5: 9 * GIB, 0.9: 11 * GIB, 0.95: 11 * GIB, 0.99: 100 * GIB}
    run = Scored("a", "m", "mlp", "h200", "sgd", 10 * GIB, 8 * GIB, bounds, card_bytes=80 * GIB)
    others = [
        replace(run, id="capped", ran_at=8 * GIB, died_at=7 * GIB),  # seen to run with 8 GiB
        replace(run, id="played", ran_at=8 * GIB, died_at=7 * GIB, is_emulated=True),  # never seen to run
        replace(run, id="oom", censored=True, ran_out_of_memory=True),
        replace(run, id="no duration"),
        replace(run, id="no card", card_bytes=None),
    ]
    found = costs([run, *others], {"a": 3600.0, "capped": 7200.0, "played": 3600.0, "oom": 9.0, "no card": 9.0})
    of = {one.policy: one for one in found.policies}
    assert found.runs == 3
    assert found.used_gib_hours == pytest.approx(40)
    assert sorted(found.left_out.values()) == [1, 1, 1]
    assert (of["the whole card"].requested_gib_hours, of["the whole card"].deaths) == (320, 0)
    assert (of["our estimate"].requested_gib_hours, of["our estimate"].deaths) == (32, 2)
    assert of["our estimate"].again_gib_hours == 160
    assert (of["our bound at 0.9"].deaths, of["our bound at 0.9"].unused_gib_hours) == (0, 4)
    assert of["our bound at 0.99"].requested_gib_hours == 320  # at most the card
