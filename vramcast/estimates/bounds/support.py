"""The level that the measured models behind a bound support, and the phrase that says so.

A bound at level q needs q / (1 - q) models like the job (`vramcast.learner.conformal`), so n models support n / (n + 1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from vramcast.core.errors import UsageError
from vramcast.estimates.bounds.parts import MarginPart
from vramcast.hardware.context import Context
from vramcast.hardware.device import Device
from vramcast.learner import sum_quantile
from vramcast.learner.sum_quantile import Array

_SAID: Final = (0.99, 0.98, 0.95, 0.9)  # arbitrary: shares that people say
# arbitrary: the level without `level`, and the models that it takes. The width of most classes rises steeply beyond 19 of 20
# (docs/bounds.md), and with fewer models than 39 one of them alone sets a bound at this level: (n + 1) / 20 < 2.
_DEFAULTS: Final = ((0.95, 39), (0.9, 0))
_ROUNDING: Final = 1e-9  # arbitrary: far below a job in a million


@dataclass(frozen=True, slots=True)
class Support:
    """The measured models behind a bound.

    Attributes:
        models: Number of distinct measured models of the job's class.
    """

    models: int

    @property
    def level(self) -> float:
        """The highest level that the models support."""
        return self.models / (self.models + 1)

    @property
    def default_level(self) -> float:
        """The level of a bound for which none is given."""
        return next(level for level, models in _DEFAULTS if self.models >= models)

    def supports(self, level: float) -> bool:
        """Return whether the models support a level."""
        return level <= self.level + _ROUNDING

    def words(self, level: float) -> str:
        """Return what a bound at `level` holds for: "9 of 10 jobs like it (14 measured models, too few for 99 of 100)"."""
        models = f"{self.models or 'no'} measured model{'' if self.models == 1 else 's'}"
        if self.supports(level):
            return f"{jobs_below(level)} like it ({models})"
        least = next((said for said in _SAID if self.supports(said)), math.floor(10 * self.level) / 10)
        return f"{jobs_below(least)} like it ({models}, too few for {jobs_below(level).removesuffix(' jobs')})"


class BoundSource(ABC):
    """The source of a bound."""

    __slots__ = ()

    @abstractmethod
    def upper(self, card: Device, context: Context) -> Array:
        """Return the bytes of `card` that the job stays below, at each of `sum_quantile.LEVELS`; never falling.

        Args:
            card: The job's card.
            context: Memory of the process outside the segments on that card, from the table.
        """

    def quantile(self, level: float, card: Device, context: Context) -> int:
        """Return the bytes of `card` that the job stays below with probability `level`; see `upper`."""
        return round(sum_quantile.at(self.upper(card, context), level))

    @property
    @abstractmethod
    def support(self) -> Support:
        """The measured models behind the bound."""

    @abstractmethod
    def margin(self, level: float, card: Device, context: Context) -> Sequence[MarginPart]:
        """Return the parts of the margin at `level`, largest first."""

    @abstractmethod
    def method(self, level: float, card: Device) -> tuple[str, int]:
        """Return a description of the method at `level`, and the number of models or runs behind it."""

    def share_far_below(self, size_bytes: int, card: Device, context: Context) -> float:
        """Return the share that stays below a size that is smaller than the median."""
        return 0.0

    def share_up_to(self, upper: Array, card: Device, context: Context) -> float:
        """Return the share of jobs like it that fit on a card, from these quantiles of the process peak there."""
        share = sum_quantile.share_up_to(upper, card.total_bytes)
        return share or self.share_far_below(card.total_bytes, card, context)

    def context_on(self, card: Device, context: Context) -> Context:
        """Return the context on a card: the one measured with this stack, if there is one, or that of the table."""
        return context

    def __call__(self, level: float) -> NoReturn:
        """Say where the bytes of a bound are."""
        raise UsageError(f"`bound` is the source of the bound: its bytes are est.quantile({level}) or est.upper_bound.")


def jobs_below(level: float) -> str:
    """Return a level as a share of jobs: `9 of 10 jobs`, `19 of 20 jobs`; if necessary rounded down to 100, 1,000 or 10,000."""
    whole = (of for of in (10, 20, 100) if abs(level * of - round(level * of)) < _ROUNDING)
    parts = next(whole, next((of for of in (100, 1_000) if level < 1 - 1 / of), 10_000))
    return f"{int(level * parts + _ROUNDING):d} of {parts} jobs"
