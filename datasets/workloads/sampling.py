"""Seeded choices that are the same in every version of Python.

Only `random.Random.random` is guaranteed to be stable; `choice`, `shuffle` and the like may change from one version to the
next, and the list of jobs with them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices; equal keys give equal streams.

    Args:
        key: Identifies the stream, for example (seed, index).
    """

    def __init__(self, *key: int | str) -> None:
        self._uniform = random.Random("/".join(map(str, key))).random

    def uniform(self, low: float, high: float) -> float:
        """Return a number between `low` and `high`."""
        return low + (high - low) * self._uniform()

    def log_uniform(self, low: float, high: float) -> float:
        """Return a number between `low` and `high` whose logarithm is uniform."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def integer(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + int(self._uniform() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """Return true with this probability."""
        return self._uniform() < probability

    def choice(self, options: Sequence[T]) -> T:
        """Return one of `options`."""
        return options[int(self._uniform() * len(options))]

    def weighted(self, weights: Mapping[T, float]) -> T:
        """Return a key with a probability proportional to its weight."""
        bounds = list(accumulate(weights.values()))
        point = self._uniform() * bounds[-1]
        return next(key for key, bound in zip(weights, bounds, strict=True) if point < bound)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return `items` in a random order."""
        return [item for _, _, item in sorted((self._uniform(), place, item) for place, item in enumerate(items))]
