"""The gate of the trees: where they win on models that they have not seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vramcast.learner import gate, stacks, training
from vramcast.learner.conformal import LEVELS
from vramcast.learner.examples import Example
from vramcast.learner.table import Table, folds_of, table_of

MakeExamples = Callable[..., list[Example]]
QUICK = {"n_estimators": 20, "max_depth": 3, "learning_rate": 0.2}


@pytest.fixture(scope="module")
def table(make_examples: MakeExamples) -> Table:
    examples = make_examples(160)
    return table_of(examples, stacks.learn(examples))


def losses(table: Table, learned: float, plain: float = 1.0) -> gate.Losses:
    """Return losses that are equal in all runs."""
    n = len(table.y)
    return gate.Losses(table, np.full(n, plain), np.full(n, learned))


@pytest.mark.parametrize(("learned", "segments"), [(0.9, {"matmul", "convolution"}), (0.97, set()), (1.0, set())])
def test_trees_must_win_by_enough(table: Table, learned: float, segments: set[str]) -> None:
    assert losses(table, learned).scope().segments == segments


def test_points_whose_median_rises_are_left_alone(table: Table) -> None:
    n = len(table.y)
    plain, learned = np.zeros(n), np.full(n, 0.1)
    plain[::3] = 9.0  # most runs are exact, and learning smears them
    smeared = gate.Losses(table, plain, learned, are_points=True)
    assert smeared.scope().segments == frozenset()
    assert gate.Losses(table, plain, learned).scope().segments != frozenset()


def test_gain_has_its_interval(table: Table) -> None:
    random = np.random.default_rng(1)
    noisy = gate.Losses(table, np.ones(len(table.y)), random.uniform(0.4, 1.2, len(table.y)))
    (gain,) = {family: one for family, one in noisy.gains(noisy.scope()).items() if family == "convolution inference"}.values()
    assert gain.low < gain.change < gain.high
    assert gain.is_used
    assert gain.models == len(set(table.groups[table.segments == "convolution"].tolist()))


def test_perfect_quantiles_have_no_loss(table: Table) -> None:
    folds = folds_of(table, 4, 0)
    quantiles = np.repeat(table.y[:, None], len(LEVELS), axis=1)
    found = gate.bound_losses(table, quantiles, folds)
    assert found.learned[table.y >= 0] == pytest.approx(0, abs=1e-9)  # no bound is below the point
    assert found.plain.sum() > 0


def test_shuffling_the_deciding_feature_costs_most(table: Table) -> None:
    fit = training.cross_fitted(table, QUICK, folds=4)
    costs = gate.importances(table, fit.learners, fit.folds, "convolution")
    assert max(costs, key=lambda name: costs[name]) == "workspace_largest_share"
