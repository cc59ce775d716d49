"""Quantiles of a sum of parts of a peak, whose errors are independent.

The sum of each part's worst case would exceed the requested level and its cost. Here the parts are independent, each with
its own quantiles, and their sum has a distribution of its own: all pairs of values, with the product of their
probabilities. If the parts were measured together, as process peaks, their joint residuals are used instead
(`vramcast.learner.model`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.core.errors import UsageError

Array: TypeAlias = npt.NDArray[np.float64]

# arbitrary: cells of probability, finer where bounds are needed; a part's value in a cell is the one at the cell's upper
# end
_ENDS: Final = (0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9999)
_CELLS: Final = 8  # arbitrary: cells between two of these
_ROUNDING: Final = 1e-9  # arbitrary: far below a cell


def _grid() -> Array:
    ends = [0.0, *_ENDS]
    parts = [np.linspace(low, high, _CELLS + 1)[1:] for low, high in itertools.pairwise(ends)]
    found: Array = np.concatenate(parts[1:])
    return np.concatenate([[_ENDS[0]], found])  # below the median a part counts as its median


LEVELS: Final = _grid()
# The last value stands for all beyond it; otherwise each part would push the others' quantiles up a cell.
_SHARES: Final = np.diff(np.concatenate([[0.0], LEVELS[:-1], [1.0]]))


def by_level(quantile: Callable[[float], float]) -> Array:
    """Return a part's quantiles at `LEVELS`, never falling."""
    found: Array = np.maximum.accumulate(np.array([quantile(float(level)) for level in LEVELS]))
    return found


def uniform(most: float) -> Array:
    """Return the quantiles of a part that is only known to be below `most`: it grows from the median on."""
    return most * (LEVELS - 0.5) / 0.5


def joined(parts: Sequence[Array]) -> Array:
    """Return the quantiles of the sum of independent parts, at `LEVELS`."""
    moving = [part for part in parts if part[-1] > part[0]]
    fixed = sum(float(part[0]) for part in parts if part[-1] <= part[0])
    if not moving:
        return np.full(len(LEVELS), fixed)
    total = moving[0]
    for part in moving[1:]:
        sums = (total[:, None] + part[None, :]).ravel()
        shares = (_SHARES[:, None] * _SHARES[None, :]).ravel()
        order = np.argsort(sums, kind="stable")
        reached = np.cumsum(shares[order])
        places = np.minimum(np.searchsorted(reached, LEVELS * (1 - _ROUNDING)), len(order) - 1)
        total = np.concatenate([sums[:1], sums[order][places][1:]])  # at the median all parts are at their medians
    return total + fixed


def at(part: Array, level: float) -> float:
    """Return a part's quantile at any level: that of the next of `LEVELS`, or of the last.

    Raises:
        UsageError: The level is not in (0, 1).
    """
    if not 0 < level < 1:
        raise UsageError(f"level is {level}: it must be between 0 and 1, for example 0.9.")
    return float(part[min(int(np.searchsorted(LEVELS, level * (1 - _ROUNDING))), len(LEVELS) - 1)])


def share_up_to(part: Array, size: float) -> float:
    """Return the highest of `LEVELS` with a quantile of at most a size; 0 if the size is below all."""
    place = int(np.searchsorted(np.round(part), size, side="right"))
    return float(LEVELS[place - 1]) if place else 0.0
