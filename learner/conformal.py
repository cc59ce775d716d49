"""Conformal calibration of one-sided bounds: what turns a quantile into a promise.

The score of a run is by how much its residual lies above the predicted quantile. Runs fall into a tree of groups
(`residual_tree.py`): classes by what is known to decide residuals, and parts of these which the data found. The next run's
score is predicted from all runs down to its finest group:

    the scores of a group's n models are n of n + 3 parts; the other three are what the group above says

So a group of few models is as wide as the group above it in the tail, and one of many is as narrow as itself. Above all runs
one part of n + 1 lies at infinity, where conformal prediction puts it. Cuts which the same runs chose are a kind of learning,
so that a level is calibrated once more in each class: each run is held against groups which were found without its model, and
the bound at level q asks for the level at which q (n + 1) of the n models of the class were covered (after distributional
conformal prediction: Chernozhukov, Wuethrich and Zhu, PNAS 2021). It never asks for less than q.

If the models of a class and the next one are exchangeable, the bound holds with probability about q, on average over models,
where the class has at least q / (1 - q) of them; where it has fewer nothing is promised, and the bound is what the runs show.
What this does not promise: anything for a single job; anything for jobs unlike the scored ones (another stack, another kind of
model). Runs of one model are alike, so they are not exchangeable with those of another: each model counts as one, its runs with
equal shares of one weight.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.core.errors import UsageError
from vramcast.learner.residual_tree import ALL_RUNS, Group, Rows, grown, in_words, model_weights
from vramcast.learner.traits import Traits

LEVELS: Final = (0.1, 0.5, 0.75, 0.9, 0.95, 0.99)  # arbitrary: dense where bounds are asked for; 0.1 places censored rows
MOST_RESIDUAL: Final = 27.7  # arbitrary: log(measured / simulated) of a TiB against a byte; what lies beyond is no measurement
FOLDS: Final = 10  # arbitrary: more make the groups of a fold more like those of all runs
Array: TypeAlias = npt.NDArray[np.float64]

_BORROWED: Final = 3.0  # arbitrary: models as whose the group above counts; from 2 to 5 the bounds differ by little
_ROUNDING: Final = 1e-12  # arbitrary: far below the weight of a run


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of one set of runs, ascending; `reached`: how many models lie at or below each, where a model's runs share one."""

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
        """Of each score; they sum to `n`."""
        return np.diff(self.reached, prepend=0.0)

    def at(self, level: float) -> float:
        """Return the smallest score at or below which a share `level` lies, the next run counted as one above all.

        Infinite where there are too few models to promise `level`: fewer than level / (1 - level).
        """
        place = int(np.searchsorted(self.reached, level * (self.n + 1) * (1 - _ROUNDING)))
        return float(self.values[place]) if place < len(self.values) else math.inf

    def between(self, level: float) -> float:
        """Return the score at (n + 1) x `level` models, between two of them where it is no whole number; at most the largest.

        The next run lies below it with probability `level`, were scores spread evenly between those of neighbours.
        """
        return float(np.interp(level * (self.n + 1), self.reached, self.values))


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is predicted of a score: values ascending, and the probability of a score at most as large; the rest lies beyond."""

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
        """Return the smallest value with at least this probability at or below it; infinite where there is none."""
        return self._value(int(np.searchsorted(self.reached, level * (1 - _ROUNDING))))

    def beyond(self, level: float) -> float:
        """Return the smallest value with more than this probability at or below it; infinite where there is none."""
        return self._value(int(np.searchsorted(self.reached, level * (1 + _ROUNDING), side="right")))

    def below(self, scores: Array) -> Array:
        """Return the probability of a score below each of these: asked for more than that, it would have been covered."""
        places = np.searchsorted(self.values, scores)
        found: Array = np.concatenate([[0.0], self.reached])[places]
        return found

    def _value(self, place: int) -> float:
        return float(self.values[place]) if place < len(self.values) else math.inf


def models_needed(level: float) -> int:
    """Return how many models a promise at `level` takes: ceil(level / (1 - level))."""
    return math.ceil(level / (1 - level) * (1 - _ROUNDING))


@dataclass(frozen=True, slots=True)
class Correction:
    """What a calibration adds to a predicted quantile.

    Attributes:
        column: Which of the learner's levels to add it to, as an index.
        value: Infinite never; where nothing larger than what is asked was seen it is the largest score.
        key: The job's finest group, in words.
        n: Models of that group.
        is_promised: Its class has enough models; else it is what the runs say, and no promise.
    """

    column: int
    value: float
    key: str
    n: int
    is_promised: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scores by the learner's levels and by group.

    Attributes:
        levels: At which the learner gives quantiles, ascending.
        scores: Of each run at each level, n x levels.
        models: Of each run, as numbers.
        groups: Found in the runs.
        reached: Of each run at each level the probability at which it was just covered, by groups found without its model.
    """

    levels: tuple[float, ...]
    scores: Array
    models: Rows
    groups: Group
    reached: Array
    _known: dict[tuple[int, str], Distribution] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def empty(cls, levels: Sequence[float] = (0.5,)) -> Calibration:
        """Return the calibration of no runs: every correction is 0, and nothing is promised."""
        none, rows = np.zeros((0, len(levels))), np.zeros(0, np.int64)
        return cls(tuple(levels), none, rows, Group(ALL_RUNS, rows, 0), none)

    def promises(self, level: float, traits: Traits) -> bool:
        """Return whether enough models of its class stand behind a job's bound at `level`."""
        return self.groups.of_class(traits).n_models >= models_needed(level)

    def correction(self, level: float, traits: Traits) -> Correction:
        """Return what makes a bound at `level`, any in (0, 1): scores promise every level, whichever quantile they belong to.

        The quantile is the learner's next one at or above `level`, or its last.
        """
        column = min(bisect.bisect_left(self.levels, level), len(self.levels) - 1)
        path = self.groups.path(traits)
        predicted, is_promised = self.distribution(column, path), self.promises(level, traits)
        value = predicted.at(level)
        if is_promised:
            own = self.groups.of_class(traits)
            if own is path[-1]:
                value = max(value, Scores.of(self.scores[own.rows, column], self.models[own.rows]).between(level))
            else:  # cut by what the same runs show
                reached = Scores.of(self.reached[own.rows, column], self.models[own.rows])
                value = max(value, predicted.beyond(reached.between(level)))
        if math.isinf(value):
            value, is_promised = float(self.scores[:, column].max(initial=0.0)), False
        return Correction(column, value, in_words(path[-1].name), path[-1].n_models, is_promised)

    def distribution(self, column: int, path: Sequence[Group]) -> Distribution:
        """Return what is predicted of the score of a job in these groups."""
        key = (column, path[-1].name)
        if key not in self._known:
            self._known[key] = _along(path, self.scores[:, column], self.models)
        return self._known[key]


def calibrate(
    levels: Sequence[float], quantiles: Array, residuals: Array, models: Sequence[str], traits: Sequence[Traits]
) -> Calibration:
    """Return the calibration of runs which the learner has not seen.

    Args:
        levels: Of the columns of `quantiles`.
        quantiles: n x levels, each row predicted by a learner which did not learn from the row's model.
        residuals: What was measured, n; a lower bound of a censored row may stand here: it can only raise the bound.
        models: Of each row.
        traits: Of each row.
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
        by_leaf: dict[str, tuple[tuple[Group, ...], list[int]]] = {}
        for row in np.flatnonzero(new).tolist():
            path = found.path(traits[row])
            by_leaf.setdefault(path[-1].name, (path, []))[1].append(row)
        for path, rows in by_leaf.values():
            for column in range(len(levels)):
                predicted = _along(path, scores[known, column], numbers[known])
                reached[rows, column] = predicted.below(scores[rows, column])
    return Calibration(tuple(levels), scores, numbers, groups, reached)


def _along(path: Sequence[Group], scores: Array, models: Rows) -> Distribution:
    return Distribution.along([Scores.of(scores[group.rows], models[group.rows]) for group in path])


@dataclass(slots=True)
class Adaptive:
    """Adaptive conformal inference: keeps the coverage of a stream of runs, whatever changes under it.

    After each run the level that is asked of the calibration moves: up by `rate` x level after a miss, down by `rate` x
    (1 - level) after a hit. Then the share of misses approaches 1 - level for any sequence of runs, the faster the larger
    `rate` is.
    Source: Gibbs and Candes, Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021, equation 2.

    Attributes:
        level: Which is promised.
        rate: Step, > 0.
        asked: The level to ask for next. It may leave (0, 1), which the guarantee needs: from 1 on, ask for the whole card.
    Raises:
        UsageError: level or rate out of range.
    """

    level: float
    rate: float = 0.02  # arbitrary: the paper uses 0.005 to 0.05
    asked: float = math.nan

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or self.rate <= 0:
            raise UsageError(f"level is {self.level} and rate {self.rate}: (0, 1) and above 0 are expected.")
        if math.isnan(self.asked):
            self.asked = self.level

    def observe(self, *, covered: bool) -> float:
        """Take in whether the last bound held; return the level to ask for next: 1 and more means the whole card."""
        missed = 0.0 if covered else 1.0
        self.asked += self.rate * (missed - (1 - self.level))
        return self.asked
