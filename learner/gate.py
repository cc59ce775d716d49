"""The gate of the trees: the families of jobs in which they win on models that they have not seen.

Trees set bounds where they lower the pinball loss of the bounds at `JUDGED` against conformal bounds alone, both calibrated on
runs of other models. They correct the point where their median is nearer to the measured peak. A gain that may be chance does
not count: it must remain in nearly all bootstrap samples of the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.learner.conformal import LEVELS, Array, calibrate
from vramcast.learner.gains import Gain
from vramcast.learner.model import Scope
from vramcast.learner.scale import peak_of, residual_of
from vramcast.learner.table import ExampleTable, Folds

if TYPE_CHECKING:
    from vramcast.learner.residual import ResidualQuantiles

JUDGED: Final = (0.9, 0.95)  # arbitrary: levels of the bounds that decide; the tail beyond is a matter of few models
FEWEST: Final = 5  # arbitrary: models of a family that are needed to judge it
_MUST_CHANGE: Final = -0.05  # arbitrary: a smaller gain is not worth the trees
_DRAWS: Final = 1000  # arbitrary: bootstrap samples of models
_PERMUTED: Final = 1000  # arbitrary: runs of a fold that are permuted
_SHOWN: Final = 8  # arbitrary: features in a report

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of each run, without and with the trees.

    Attributes:
        table: The runs.
        plain, learned: The losses, [runs]; the learner has not seen the run's model.
        are_points: The losses are errors of points: their median must not rise either, because most points are nearly exact.
    """

    table: ExampleTable
    plain: Array
    learned: Array
    are_points: bool = False

    def gains(self, *, seed: int = 0) -> dict[str, Gain]:
        """Return the gain in each family of jobs, by `Subject.family_key`; every model has the same weight."""
        found = {}
        families = np.array([subject.family_key for subject in self.table.subjects])
        for name in sorted(set(families.tolist())):
            rows = (families == name) & ~self.table.censored
            if self.plain[rows].sum() > 0:
                found[name] = self._gain(rows, seed)
        return found

    def _gain(self, rows: Mask, seed: int) -> Gain:
        weights = self.table.weights[rows]
        places = np.unique(self.table.groups[rows], return_inverse=True)[1]
        plain, learned = (np.bincount(places, weights * losses[rows]) for losses in (self.plain, self.learned))
        drawn = np.random.default_rng(seed).multinomial(len(plain), np.full(len(plain), 1 / len(plain)), _DRAWS)
        sums = drawn @ plain
        changes = (drawn @ learned)[sums > 0] / sums[sums > 0] - 1
        low, high = np.quantile(changes, (0.025, 0.975)).tolist()
        change = float(learned.sum() / plain.sum() - 1)
        smears = self.are_points and np.median(self.learned[rows]) > np.median(self.plain[rows])
        is_used = len(plain) >= FEWEST and change <= _MUST_CHANGE and high <= 0 and not smears
        return Gain(len(plain), change, low, high, is_used)


def scope_of(gains: Mapping[str, Gain]) -> Scope:
    """Return the families in which the trees are used."""
    return Scope(frozenset(name for name, gain in gains.items() if gain.is_used))


def point_losses(table: ExampleTable, medians: Array) -> Losses:
    """Return the relative errors of points: as simulated, and with the learned median."""
    simulated, base = _peaks(table)
    learned = peak_of(medians, base, table.offset)
    return Losses(table, np.abs(simulated / table.measured - 1), np.abs(learned / table.measured - 1), are_points=True)


def _peaks(table: ExampleTable) -> tuple[Array, Array]:
    """Return the simulated peak of each run, and the one from which its bound starts."""
    reserved, base = (np.array([getattr(one, name) for one in table.subjects], np.float64) for name in ("reserved", "base"))
    return reserved + table.contexts, base + table.contexts


def bound_losses(table: ExampleTable, quantiles: Array, folds: Folds) -> Losses:
    """Return the pinball losses of bounds, without and with these quantiles, both calibrated on runs of other folds.

    Args:
        table: The runs.
        quantiles: Quantiles of each run, n x LEVELS, by a learner that has not seen its model.
        folds: Rows to calibrate on and to judge.
    """
    return Losses(table, _pinballs(table, np.zeros_like(quantiles), folds), _pinballs(table, quantiles, folds))


def _pinballs(table: ExampleTable, quantiles: Array, folds: Folds) -> Array:
    """Return the pinball loss of each run's calibrated bounds, the mean over `JUDGED`; a bound is not below the point."""
    reserved, base = _peaks(table)
    points = np.asarray(residual_of(reserved, base, table.offset))
    found, traits = np.zeros(len(table.y)), [subject.traits for subject in table.subjects]
    for known, new in folds:
        of_known = [traits[row] for row in known.tolist()]
        calibration = calibrate(LEVELS, quantiles[known], table.y[known], table.groups[known].tolist(), of_known)
        alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for row in new.tolist():
            alike.setdefault(tuple(sorted(traits[row].items())), []).append(row)
        for rows in alike.values():
            for level in JUDGED:
                added = calibration.correction(level, traits[rows[0]])
                bounds = np.maximum(quantiles[rows, added.column] + added.value, points[rows])
                nearest = np.clip(bounds, table.low[rows], table.high[rows])  # between two ends, no bound is known to be wrong
                found[rows] += pinball(nearest - bounds, level) / len(JUDGED)
    return found


def pinball(above: Array, level: float) -> Array:
    """Return the pinball losses of bounds that are exceeded by `above`, which may be negative."""
    return np.maximum(level * above, (level - 1) * above)


def importances(
    table: ExampleTable, learners: Mapping[int, ResidualQuantiles], folds: Folds, family: str, *, seed: int = 0
) -> dict[str, float]:
    """Return the features whose permutation on unseen models costs most, with the growth of the loss as a share.

    Args:
        table: The runs.
        learners: The learner of each fold.
        folds: Rows to learn from and to judge.
        family: The jobs that are judged, by `Subject.family_key`.
        seed: Of the permutation.
    """
    columns = [LEVELS.index(level) for level in JUDGED]
    is_judged = np.array([subject.family_key == family for subject in table.subjects]) & ~table.censored

    def loss(feature: int | None) -> float:
        random, total = np.random.default_rng(seed), 0.0
        for fold, (_, new) in enumerate(folds):
            rows = new[is_judged[new]][:_PERMUTED]
            X = table.X[rows].copy()
            if feature is not None:
                X[:, feature] = random.permutation(X[:, feature])
            if len(rows):
                above = table.y[rows, None] - learners[fold].predict_quantiles(X)[:, columns]
                total += float(sum(table.weights[rows] @ pinball(above[:, at], level) for at, level in enumerate(JUDGED)))
        return total

    plain = loss(None)
    if plain <= 0:
        return {}
    read = {int(name[1:]) for learner in learners.values() for name in learner.booster_.get_score()}  # named f0, f1, ...
    costs = {table.names[place]: loss(place) / plain - 1 for place in sorted(read)}
    best = sorted(costs, key=lambda name: -costs[name])[:_SHOWN]
    return {name: costs[name] for name in best if costs[name] > 0}
