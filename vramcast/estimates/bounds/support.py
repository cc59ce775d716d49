"""The level that the measured models behind a bound support, and the phrase that says so.

A bound at level q needs q / (1 - q) models like the job (`vramcast.learner.conformal`), so n models support n / (n + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

from vramcast.core.errors import UsageError

_MOST: Final = 0.99  # arbitrary: a default above it would pay much memory for the last jobs
_FEW: Final = 0.9  # arbitrary: the default where fewer models than it needs, nine, are like the job
_FEWEST: Final = 9  # spec: the models that level 0.9 needs
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
        return min(self.level, _MOST) if self.models >= _FEWEST else _FEW

    def words(self, level: float) -> str:
        """Return what a bound at `level` holds for: "93 of 100 jobs like it (14 measured models, too few for 99)"."""
        models = f"{self.models or 'no'} measured model{'' if self.models == 1 else 's'}"
        if level <= self.level + _ROUNDING:
            return f"{jobs_below(level)} like it ({models})"
        aim = jobs_below(level).removesuffix(" jobs").removesuffix(" of 100")
        return f"{jobs_below(self.level)} like it ({models}, too few for {aim})"


class Source:
    """The source of a bound."""

    __slots__ = ()

    def __call__(self, level: float) -> NoReturn:
        """Say where the bytes of a bound are."""
        raise UsageError(f"`bound` is the source of the bound: its bytes are est.quantile({level}) or est.upper_bound.")


def jobs_below(level: float) -> str:
    """Return a level as a share of jobs, rounded down: `93 of 100 jobs`; more digits only above 99 of 100."""
    parts = next(
        (parts for parts in (100, 1_000) if level < 1 - 1 / parts or abs(level * parts - round(level * parts)) < _ROUNDING),
        10_000,
    )
    return f"{int(level * parts + _ROUNDING):d} of {parts} jobs"
