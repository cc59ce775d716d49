"""Residuals that are only known to lie between two ends, such as those of the largest batch that ran.

A job that ran on a card needs at most the card, and one that failed there needs more. The ends of many jobs together show where
residuals are: the maximum-likelihood distribution puts its mass where the most intervals overlap.

Source: B. W. Turnbull, The empirical distribution function with arbitrarily grouped, censored and truncated data, JRSS B 1976.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.learner.examples import Example
from vramcast.learner.model import Subject
from vramcast.learner.scale import OFFSET_BYTES, peak_of, residual_of

Array: TypeAlias = npt.NDArray[np.float64]
_GOLDEN: Final = (5**0.5 - 1) / 2  # spec: multiples of the golden ratio spread most evenly over (0, 1)
_ROUNDS: Final = 500  # arbitrary: of expectation maximization; later ones move less than a thousandth of the mass


def placed(low: Array, high: Array, weights: Array) -> Array:
    """Return a residual for each row: its own, or a quantile of the estimated distribution between its ends.

    At its lower end, a run out of memory would pass for one that its bound covered. A row without an upper end says little, and
    takes the median. Medians of rows with two ends have a third of the spread of their residuals: so each takes another
    quantile, by its rank, and together they have the estimated distribution.

    Args:
        low, high: The ends of each row, equal where the residual is known, and infinite where only a lower end is. A row stays
            at a lower end that no other row exceeds.
        weights: Weight of each row.
    """
    high = np.where(np.isinf(high) & (low >= np.max(high, where=np.isfinite(high), initial=-np.inf)), low, high)
    if (low == high).all():
        return low.copy()
    ends = np.unique(high[np.isfinite(high)])
    innermost = np.diff(np.searchsorted(np.sort(low), ends, side="right"), prepend=0) > 0
    values = ends[innermost]  # the ends on the safe side of the intervals that no other one cuts
    inside = (low[:, None] <= values) & (values <= high[:, None])
    mass = np.full(len(values), 1 / len(values))
    for _ in range(_ROUNDS):
        shares = inside * mass
        shares /= shares.sum(axis=1, keepdims=True)
        mass = weights @ shares / weights.sum()
    reached = np.cumsum(shares, axis=1)
    rank = np.argsort(np.argsort(low + high, kind="stable"), kind="stable")
    level = np.where(np.isfinite(high), (rank + 0.5) * _GOLDEN % 1, 0.5)
    found = values[np.argmax(reached >= level[:, None] * reached[:, -1:] * (1 - 1e-9), axis=1)]
    return np.where(high > low, found, low)


def between(ran: Example, failed: Example, limit: int) -> Example:
    """Return the run that failed for lack of memory, with the ends of its reserved peak that both runs of a job show.

    Args:
        ran, failed: The same job, as it ran and as it failed: with fewer samples, for example.
        limit: The memory that was there for segments, in bytes: the card's less the context.
    """
    bases = [Subject.of(run).base for run in (ran, failed)]
    most = float(peak_of(residual_of(limit, bases[0], OFFSET_BYTES), bases[1], OFFSET_BYTES))
    return replace(failed, measured_reserved=limit, measured_process=None, censored=True, at_most=max(round(most), limit))
