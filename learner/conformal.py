"""Conformal calibration of one-sided bounds, which gives a predicted quantile a guaranteed coverage.

The score of a run is the amount by which its residual exceeds the predicted quantile. Runs are in a tree of groups
(`residual_tree.py`): classes by the known causes of residuals, and subgroups found in the data. The next run's score is
predicted from all runs down to its finest group:

    the scores of a group's n models are n of n + 3 parts; the other three are the prediction of the group above

So a group of few models is as wide in the tail as the group above it, and a group of many is as narrow as its own scores.
Above all runs one part of n + 1 lies at infinity, as in conformal prediction. Cuts chosen by the same runs are a kind of
learning, so that each class calibrates the level once more: each run is compared with groups found without its model, and
the bound at level q uses the level at which q (n + 1) of the n models of the class were covered (after distributional
conformal prediction: Chernozhukov, Wuethrich and Zhu, PNAS 2021). That level is never below q.

If the models of a class and the next one are exchangeable, the bound holds with probability about q, on average over
models, provided that the class has at least q / (1 - q) of them; with fewer there is no guarantee, and the bound is
empirical. There is no guarantee for a single job, and none for jobs unlike the scored ones (another stack, another kind of
model). Runs of one model are alike, so they are not exchangeable with those of another: each model counts as one, and its
runs share its weight equally.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.learner.residual_tree import ALL_RUNS, ResidualGroup, Rows, grown, in_words, model_weights
from vramcast.learner.traits import Traits

LEVELS: Final = (0.1, 0.5, 0.75, 0.9, 0.95, 0.99)  # arbitrary: dense where bounds are needed; 0.1 places censored rows
MOST_RESIDUAL: Final = 27.7  # arbitrary: log(measured / simulated) of 1 TiB against 1 byte; a larger value is no measurement
FOLDS: Final = 10  # arbitrary: more folds make the groups of a fold more like those of all runs
Array: TypeAlias = npt.NDArray[np.float64]

_BORROWED: Final = 3.0  # arbitrary: weight of the group above, in models; from 2 to 5 the bounds differ little
_ROUNDING: Final = 1e-12  # arbitrary: far below the weight of a run


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of one set of runs, ascending, with `reached`, the cumulative weight; the runs of a model share its weight."""

    values: Array
    reached: Array

    @classmethod
    def of(cls, scores: npt.ArrayLike, models: npt.ArrayLike) -> Scores:
        """Return the scores of runs of these models: each model has weight 1, shared by its runs."""
        values = np.asarray(scores, np.float64)
        order = np.argsort(values, kind="stable")
        return cls(values[order], np.cumsum(model_weights(np.asarray(models))[order]))

    @property
    def n(self) -> float:
        """The number of models."""
        return float(self.reached[-1]) if len(self.reached) else 0.0

    @property
    def weights(self) -> Array:
        """The weight of each score; they sum to `n`."""
        return np.diff(self.reached, prepend=0.0)

    def at(self, level: float) -> float:
        """Return the smallest score with at least a share `level` at or below it, counting the next run as one above all.

        It is infinite with too few models to guarantee `level`: fewer than level / (1 - level).
        """
        place = int(np.searchsorted(self.reached, level * (self.n + 1) * (1 - _ROUNDING)))
        return float(self.values[place]) if place < len(self.values) else math.inf

    def between(self, level: float) -> float:
        """Return the score at (n + 1) x `level` models, interpolated between two of them; at most the largest.

        The next run lies below it with probability `level` if scores are spread evenly between neighbors.
        """
        return float(np.interp(level * (self.n + 1), self.reached, self.values))


@dataclass(frozen=True, slots=True)
class Distribution:
    """The predicted distribution of a score: ascending values with their cumulative probabilities; the rest lies beyond."""

    values: Array
    reached: Array

    @classmethod
    def along(cls, path: Sequence[Scores]) -> Distribution:
        """Return the distribution of a job whose groups have these scores, from all runs to the finest."""
        above, values, shares = 1.0, [], []
        for depth, scores in reversed(list(enumerate(path))):
            borrowed = _BORROWED if depth else 1.0
            values.append(scores.values)
            shares.append(above * scores.weights / (scores.n + borrowed))
            above *= borrowed / (scores.n + borrowed)
        joined, of = np.concatenate(values), np.concatenate(shares)
        order = np.argsort(joined, kind="stable")
        return cls(joined[order], np.cumsum(of[order]))

    def at(self, level: float) -> float:
        """Return the smallest value with at least this cumulative probability; infinite if there is none."""
        return self._value(int(np.searchsorted(self.reached, level * (1 - _ROUNDING))))

    def beyond(self, level: float) -> float:
        """Return the smallest value with more than this cumulative probability; infinite if there is none."""
        return self._value(int(np.searchsorted(self.reached, level * (1 + _ROUNDING), side="right")))

    def below(self, scores: Array) -> Array:
        """Return the probability of a score below each of these: a bound at a higher level would have covered it."""
        places = np.searchsorted(self.values, scores)
        found: Array = np.concatenate([[0.0], self.reached])[places]
        return found

    def _value(self, place: int) -> float:
        return float(self.values[place]) if place < len(self.values) else math.inf


def models_needed(level: float) -> int:
    """Return the number of models that a guarantee at `level` needs: ceil(level / (1 - level)).

    Args:
        level: Probability of the bound, in (0, 1).

    Returns:
        The number of models.

    Example:
        >>> vramcast.models_needed(0.9), vramcast.models_needed(0.99)
        (9, 99)
    """
    return math.ceil(level / (1 - level) * (1 - _ROUNDING))


@dataclass(frozen=True, slots=True)
class Correction:
    """The amount that a calibration adds to a predicted quantile.

    Attributes:
        column: Index of the learner's level that it is added to.
        value: The amount, always finite; the largest score if none is large enough.
        key: The job's finest group, in words.
        n: Number of models in that group.
        is_promised: Whether its class has enough models; else the bound is empirical, without a guarantee.
    """

    column: int
    value: float
    key: str
    n: int
    is_promised: bool


@brief
@dataclass(frozen=True, slots=True)
class Calibration:
    """Scores by the learner's levels and by group.

    Attributes:
        levels: Levels of the learner's quantiles, ascending.
        scores: Score of each run at each level, n x levels.
        models: Model of each run, as a number.
        groups: Tree of groups found in the runs.
        reached: For each run and level, the probability at which it was just covered, by groups found without its model.
    """

    levels: tuple[float, ...]
    scores: Array
    models: Rows
    groups: ResidualGroup
    reached: Array
    _known: dict[tuple[int, str], Distribution] = field(default_factory=dict, repr=False, compare=False)
    _scores: dict[tuple[bool, int, str], Scores] = field(default_factory=dict, repr=False, compare=False)
    _corrections: dict[tuple[float, str], Correction] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def empty(cls, levels: Sequence[float] = (0.5,)) -> Calibration:
        """Return the calibration of no runs: every correction is 0, without a guarantee."""
        none, rows = np.zeros((0, len(levels))), np.zeros(0, np.int64)
        return cls(tuple(levels), none, rows, ResidualGroup(ALL_RUNS, rows, 0), none)

    def promises(self, level: float, traits: Traits) -> bool:
        """Return whether a job's class has enough models for a guarantee at `level`."""
        return self.groups.of_class(traits).n_models >= models_needed(level)

    def correction(self, level: float, traits: Traits) -> Correction:
        """Return the correction for a bound at `level`, any in (0, 1): scores can guarantee every level.

        The quantile is the learner's next one at or above `level`, or its last.
        """
        return self.corrections([level], traits)[0]

    def corrections(self, levels: Sequence[float], traits: Traits) -> list[Correction]:
        """Return the corrections for several bounds of a job."""
        path = self.groups.path(traits)
        for level in levels:
            if (level, path[-1].name) not in self._corrections:
                self._corrections[level, path[-1].name] = self._correction(level, traits, path)
        return [self._corrections[level, path[-1].name] for level in levels]

    def _correction(self, level: float, traits: Traits, path: Sequence[ResidualGroup]) -> Correction:
        column = min(bisect.bisect_left(self.levels, level), len(self.levels) - 1)
        predicted, is_promised = self.distribution(column, path), self.promises(level, traits)
        value = predicted.at(level)
        if is_promised:
            own = self.groups.of_class(traits)
            if own is path[-1]:
                value = max(value, self._own(self.scores, column, own).between(level))
            else:  # the cuts were chosen by the same runs
                value = max(value, predicted.beyond(self._own(self.reached, column, own).between(level)))
        if math.isinf(value):
            value, is_promised = float(self.scores[:, column].max(initial=0.0)), False
        return Correction(column, value, in_words(path[-1].name), path[-1].n_models, is_promised)

    def _own(self, values: Array, column: int, group: ResidualGroup) -> Scores:
        """Return the scores, or the levels reached, of a group's runs; one bound asks for many levels."""
        key = (values is self.reached, column, group.name)
        if key not in self._scores:
            self._scores[key] = Scores.of(values[group.rows, column], self.models[group.rows])
        return self._scores[key]

    def distribution(self, column: int, path: Sequence[ResidualGroup]) -> Distribution:
        """Return the predicted distribution of the score of a job in these groups."""
        key = (column, path[-1].name)
        if key not in self._known:
            self._known[key] = _along(path, self.scores[:, column], self.models)
        return self._known[key]


def calibrate(
    levels: Sequence[float], quantiles: Array, residuals: Array, models: Sequence[str], traits: Sequence[Traits]
) -> Calibration:
    """Return the calibration of runs that the learner has not seen.

    Args:
        levels: Levels of the columns of `quantiles`.
        quantiles: n x levels; each row is predicted by a learner that did not see the row's model.
        residuals: Measured residuals, n; those between two ends, or above one, as `intervals.placed` places them.
        models: Model of each row.
        traits: Traits of each row.
    """
    numbers = np.unique(np.asarray(models, str), return_inverse=True)[1].astype(np.int64)
    scores = residuals[:, None] - quantiles
    deciding = scores[:, min(bisect.bisect_left(levels, 0.9), len(levels) - 1)]
    groups = grown(deciding, numbers, traits)
    reached = np.zeros_like(scores)
    for fold in range(min(FOLDS, len(np.unique(numbers)))):
        new = numbers % FOLDS == fold
        if new.all():
            continue
        known = np.flatnonzero(~new)
        found = grown(deciding[known], numbers[known], [traits[row] for row in known.tolist()])
        by_leaf: dict[str, tuple[tuple[ResidualGroup, ...], list[int]]] = {}
        for row in np.flatnonzero(new).tolist():
            path = found.path(traits[row])
            by_leaf.setdefault(path[-1].name, (path, []))[1].append(row)
        for path, rows in by_leaf.values():
            for column in range(len(levels)):
                predicted = _along(path, scores[known, column], numbers[known])
                reached[rows, column] = predicted.below(scores[rows, column])
    return Calibration(tuple(levels), scores, numbers, groups, reached)


def _along(path: Sequence[ResidualGroup], scores: Array, models: Rows) -> Distribution:
    return Distribution.along([Scores.of(scores[group.rows], models[group.rows]) for group in path])


@dataclass(slots=True)
class AdaptiveConformal:
    """Adaptive conformal inference: maintains the coverage of a stream of runs under any change of its distribution.

    After each run the requested level moves: up by `rate` x level after a miss, down by `rate` x (1 - level) after a hit.
    Then the share of misses approaches 1 - level for any sequence of runs, faster with a larger `rate`. Source: Gibbs and
    Candes, Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021, equation 2.

    Attributes:
        level: The target level.
        rate: Step, > 0.
        asked: The level to request next. The guarantee needs it to leave (0, 1) at times: from 1 on, request the whole
            card.
    Raises:
        UsageError: Level or rate is out of range.
    """

    level: float
    rate: float = 0.02  # arbitrary: the paper uses 0.005 to 0.05
    asked: float = math.nan

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or self.rate <= 0:
            raise UsageError(f"level is {self.level} and rate {self.rate}: give a level in (0, 1) and a rate above 0.")
        if math.isnan(self.asked):
            self.asked = self.level

    def observe(self, *, covered: bool) -> float:
        """Record whether the last bound held; return the level to request next: 1 or more means the whole card."""
        missed = 0.0 if covered else 1.0
        self.asked += self.rate * (missed - (1 - self.level))
        return self.asked
