"""Conformal calibration of one-sided bounds: what turns a learned quantile into a promise.

The score of a run is by how much its residual lies above the predicted quantile. A bound at level q is the quantile plus the
ceil((n + 1) q)-th smallest of n scores (conformalised quantile regression, Romano, Patterson and Candes, NeurIPS 2019, the
upper side alone). If the scored runs and the next one are exchangeable, and no score took part in the learning of the
quantile it is compared with, the bound holds with probability at least q, on average over runs.

What this does not promise: anything for a single job; anything for jobs unlike the scored ones (another stack, another kind of
model); coverage within groups which are not calibrated apart. Runs of one model are alike, so they are not exchangeable with
those of another: each group of runs counts as one, its runs with equal shares of one weight.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

LEVELS: Final = (0.1, 0.5, 0.75, 0.9, 0.95, 0.99)  # arbitrary: dense where bounds are asked for; 0.1 places censored rows
MOST_RESIDUAL: Final = 27.7  # arbitrary: log(measured / simulated) of a TiB against a byte; what lies beyond is no measurement
Array: TypeAlias = npt.NDArray[np.float64]

ALL: Final = "*"  # the key of what all runs share
ALL_RUNS: Final = "all runs"  # how people are told of it
TOO_FEW: Final = "too few runs"


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of one set of runs, ascending, with the weight of each; the weights sum to the number of groups."""

    values: tuple[float, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, scores: Sequence[float], groups: Sequence[str]) -> Scores:
        """Return the scores of runs which belong to `groups`: each group has weight 1, shared by its runs."""
        counts: dict[str, int] = {}
        for group in groups:
            counts[group] = counts.get(group, 0) + 1
        order = sorted(range(len(scores)), key=lambda i: scores[i])
        return cls(tuple(float(scores[i]) for i in order), tuple(1.0 / counts[groups[i]] for i in order))

    @property
    def n(self) -> float:
        """The number of groups."""
        return sum(self.weights)

    def at(self, level: float) -> float:
        """Return the smallest score at or below which a share `level` lies, the next run counted as one above all.

        Infinite where there are too few groups to promise `level`: fewer than level / (1 - level).
        """
        wanted = level * (self.n + 1)
        reached = np.cumsum(self.weights)
        place = int(np.searchsorted(reached, wanted * (1 - 1e-12)))
        return self.values[place] if place < len(self.values) else math.inf


def needed(level: float) -> int:
    """Return how many groups a promise at `level` takes: ceil(level / (1 - level))."""
    return math.ceil(level / (1 - level) * (1 - 1e-12))


@dataclass(frozen=True, slots=True)
class Correction:
    """What a calibration adds to a predicted quantile.

    Attributes:
        column: Which of the learner's levels to add it to, as an index.
        value: Infinite never; where there are too few groups it is the largest score.
        key: Whose scores these are; `TOO_FEW` where nobody's are enough.
        n: Groups behind it.
    """

    column: int
    value: float
    key: str
    n: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scores by the learner's levels and by set of runs.

    Attributes:
        levels: At which the learner gives quantiles, ascending.
        scores: For each level: key -> scores; keys are `ALL`, and those of `keys_of`.
    """

    levels: tuple[float, ...]
    scores: tuple[Mapping[str, Scores], ...] = ()

    def correction(self, level: float, keys: Sequence[str]) -> Correction:
        """Return what makes a bound at `level`, any in (0, 1): scores promise every level, whichever quantile they belong to.

        The quantile is the learner's next one at or above `level`, or its last.

        Args:
            level: What is promised.
            keys: From the finest to the coarsest; the first with enough groups for the level is taken, then `ALL`.
        """
        column = min(bisect.bisect_left(self.levels, level), len(self.levels) - 1)
        by_key = self.scores[column]
        for key in (*keys, ALL):
            if key in by_key and by_key[key].n >= needed(level):
                return Correction(column, by_key[key].at(level), ALL_RUNS if key == ALL else key, by_key[key].n)
        everything = by_key.get(ALL, Scores((), ()))
        return Correction(column, max(everything.values, default=0.0), TOO_FEW, everything.n)


def keys_of(gpu: str, family: str, kind: str = "") -> tuple[str, ...]:
    """Return the keys of a run from the finest to the coarsest, without `ALL`; what is unknown ("") gives none.

    Args:
        gpu: The card's key.
        family: What kind of model it is of.
        kind: Which families share.
    """
    keys = (f"{gpu}|{family}" if gpu and family else "", family, kind)
    return tuple(dict.fromkeys(key for key in keys if key))


def calibrate(
    levels: Sequence[float], quantiles: Array, residuals: Array, groups: Sequence[str], keys: Sequence[Sequence[str]]
) -> Calibration:
    """Return the calibration of runs which the learner has not seen.

    Args:
        levels: Of the columns of `quantiles`.
        quantiles: n x levels, each row predicted by a learner which did not learn from the row's group.
        residuals: What was measured, n; a lower bound of a censored row may stand here: it can only raise the bound.
        groups: Of each row, see `Scores`.
        keys: Of each row, see `keys_of`.
    """
    members: dict[str, list[int]] = {ALL: list(range(len(residuals)))}
    for row, own in enumerate(keys):
        for key in own:
            members.setdefault(key, []).append(row)
    above = residuals[:, None] - quantiles
    scores = tuple(
        {
            key: Scores.of([float(above[row, column]) for row in rows], [groups[row] for row in rows])
            for key, rows in members.items()
        }
        for column in range(len(levels))
    )
    return Calibration(tuple(levels), scores)


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
    """

    level: float
    rate: float = 0.02  # arbitrary: the paper uses 0.005 to 0.05
    asked: float = math.nan

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or self.rate <= 0:
            raise ValueError(f"level is {self.level} and rate {self.rate}: (0, 1) and above 0 are expected.")
        if math.isnan(self.asked):
            self.asked = self.level

    def observe(self, *, covered: bool) -> float:
        """Take in whether the last bound held; return the level to ask for next: 1 and more means the whole card."""
        missed = 0.0 if covered else 1.0
        self.asked += self.rate * (missed - (1 - self.level))
        return self.asked
