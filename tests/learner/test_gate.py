"""The gate of the trees: where they win on models that they have not seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vramcast.learner import gate, stacks, training
from vramcast.learner.conformal import LEVELS
from vramcast.learner.examples import Example
from vramcast.learner.model import Scope
from vramcast.learner.table import ExampleTable, folds_of, table_of

MakeExamples = Callable[..., list[Example]]
QUICK = {"n_estimators": 20, "max_depth": 3, "learning_rate": 0.2}


@pytest.fixture(scope="module")
def table(make_examples: MakeExamples) -> ExampleTable:
    examples = make_examples(160)
    return table_of(examples, stacks.learn(examples))


def losses(table: ExampleTable, learned: float, plain: float = 1.0) -> gate.Losses:
    """Return losses that are equal in all runs."""
    n = len(table.y)
    return gate.Losses(table, np.full(n, plain), np.full(n, learned))


@pytest.mark.parametrize(("learned", "is_used"), [(0.9, True), (0.97, False), (1.0, False)])
def test_trees_must_win_by_enough(table: ExampleTable, learned: float, *, is_used: bool) -> None:
    gains = losses(table, learned).gains()
    assert len(gains) == 2
    assert {gain.is_used for gain in gains.values()} == {is_used}


def test_gain_that_may_be_chance_does_not_count(table: ExampleTable) -> None:
    """All models but one win: a gain on average, but not in the samples that have the one twice."""
    one_of_each = {table.segments[row]: table.groups[row] for row in range(len(table.groups))}
    is_lost = np.isin(table.groups, list(one_of_each.values()))
    found = gate.Losses(table, np.ones(len(table.y)), np.where(is_lost, 15.0, 0.5)).gains()
    assert len(found) == 2
    for gain in found.values():
        assert gain.change < -0.05
        assert gain.high > 0
        assert not gain.is_used


def test_family_that_wins_does_not_carry_another(table: ExampleTable) -> None:
    wins = np.array([subject.segment == "convolution" for subject in table.subjects])
    gains = gate.Losses(table, np.ones(len(table.y)), np.where(wins, 0.5, 1.5)).gains()
    scope = gate.scope_of(gains)
    assert [subject in scope for subject in table.subjects] == wins.tolist()
    assert str(scope) == "convolution inference"


def test_older_artifacts_name_segments_and_families_left_out(table: ExampleTable) -> None:
    """Up to schema 5, families did not know whether a job trains; up to 6, a segment was in the scope."""
    families = {subject.family_key for subject in table.subjects}
    for left_out in ({"matmul|dense"}, {"matmul|dense inference"}):
        scope = Scope(frozenset({"matmul", "convolution"}), frozenset(left_out))
        inside = {subject.family_key for subject in table.subjects if subject in scope}
        assert families - inside == {"matmul|dense inference"}


def test_points_whose_median_rises_are_left_alone(table: ExampleTable) -> None:
    n = len(table.y)
    plain, learned = np.zeros(n), np.full(n, 0.1)
    plain[::3] = 9.0  # most runs are exact, and learning smears them
    smeared = gate.Losses(table, plain, learned, are_points=True)
    assert not any(gain.is_used for gain in smeared.gains().values())
    assert any(gain.is_used for gain in gate.Losses(table, plain, learned).gains().values())


def test_gain_has_its_interval(table: ExampleTable) -> None:
    random = np.random.default_rng(1)
    noisy = gate.Losses(table, np.ones(len(table.y)), random.uniform(0.4, 1.2, len(table.y)))
    gain = noisy.gains()["convolution|convolution inference"]
    assert gain.low < gain.change < gain.high
    assert gain.is_used
    assert gain.models == len(set(table.groups[table.segments == "convolution"].tolist()))


def test_perfect_quantiles_have_no_loss(table: ExampleTable) -> None:
    folds = folds_of(table, 4, 0)
    quantiles = np.repeat(table.y[:, None], len(LEVELS), axis=1)
    found = gate.bound_losses(table, quantiles, folds)
    assert found.learned[table.y >= 0] == pytest.approx(0, abs=1e-9)  # no bound is below the point
    assert found.plain.sum() > 0


def test_shuffling_the_deciding_feature_costs_most(table: ExampleTable) -> None:
    fit = training.cross_fitted(table, QUICK, folds=4)
    costs = gate.importances(table, fit.learners, fit.folds, "convolution|convolution inference")
    assert max(costs, key=lambda name: costs[name]) == "workspace_largest_share"
