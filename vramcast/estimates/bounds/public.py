"""The bound where nothing was learned: quantiles of what first principles missed on public measured runs.

    quantile(q) = process + the q-quantile of what may come on top: the family's residual, the context's, what is unknown

The parts are joined as `vramcast.learner.sum_quantile` says. This holds where no artifact covers a job
(`vramcast.estimates.bounds.learned`). The residual is measured / estimated process peak - 1, its quantiles empirical, by
family: does a convolution library choose the workspaces, or not. They come from the runs named below; nothing is fitted to
single rows, and no rule of the simulator uses them. `make accuracy` prints the table again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from vramcast.estimates.bounds.parts import MarginPart, above, explained
from vramcast.hardware.context import Context
from vramcast.hardware.device import Device
from vramcast.learner import sum_quantile
from vramcast.learner.sum_quantile import Array
from vramcast.learner.traits import CONVOLUTION
from vramcast.tracer.protocol.job_result import UNKNOWN_SHARE

METHOD: Final = "empirical residual quantiles by family on public measured runs; not yet calibrated on your cluster"


@dataclass(frozen=True, slots=True)
class Residuals:
    """Empirical quantiles of measured / estimated process peak - 1, upwards: levels ascending, values not decreasing."""

    n: int
    levels: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, level: float) -> float:
        """Return the residual which a share `level` of the runs stays below; linear between the listed levels."""
        return float(np.interp(level, self.levels, self.values))


_LEVELS = (0.5, 0.9, 0.95, 0.99, 1.0)
# measured: `python -m benchmarks.accuracy.report` on the public runs of docs/accuracy.md, 2026-11, torch 2.11, cuDNN 9.12 in
# place of those of the stacks of 2024 and 2025. At each level the worst of the data sets with at least 50 runs, so that a large
# easy set does not hide a hard one: xMem's 59 transformers and 300 MLPs; xMem's 57 CNNs (sm_86 and sm_89) and 148 timm jobs
# (sm_80; two more, whose sample fell into a search for plans, are left out). The median is 0 by definition: the point
# estimate is not corrected here.
RESIDUALS: Final[dict[str, Residuals]] = {
    "matmul": Residuals(359, _LEVELS, (0.0, 0.0143, 0.0753, 0.1959, 0.1959)),
    CONVOLUTION: Residuals(205, _LEVELS, (0.0, 0.0246, 0.1389, 0.1881, 0.2897)),
}


def residual_group(libraries: frozenset[str]) -> str:
    """Return the family whose residuals apply, a key of RESIDUALS: convolutions are one once cuDNN chooses workspaces."""
    return CONVOLUTION if "cudnn" in libraries else "matmul"


@dataclass(frozen=True, slots=True)
class PublicBound:
    """What public runs tell of one job.

    Attributes:
        reserved_bytes: The estimated peak of reserved segments.
        libraries: Which the job uses.
        unknown: Calls which were refused or answered with an assumption; each widens the bound.
    Limits: the quantiles come from other people's jobs and cards; they hold for jobs like those. The 0.5 quantile is the
    point estimate, by definition: first principles are not corrected here.
    """

    reserved_bytes: int
    libraries: frozenset[str]
    unknown: tuple[str, ...] = ()

    artifact: ClassVar[None] = None  # there is none
    is_out_of_distribution: ClassVar[None] = None  # nobody can tell

    def quantile(self, level: float, card: Device, context: Context) -> int:
        """Return the bytes of `card` which the job stays below with probability `level`, as far as public runs tell.

        Args:
            level: In (0, 1).
            card: On which it runs.
            context: What the process takes there besides, as the table has it.

        Raises:
            ValueError: the level is none.
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level}: it must lie between 0 and 1, for example 0.99.")
        above_bytes = sum_quantile.at(sum_quantile.joined(list(self._parts(context).values())), level)
        return self.reserved_bytes + context.bytes + round(above_bytes)

    def method(self, level: float, card: Device) -> tuple[str, int]:
        """Return in words how the bound was made, and how many runs stand behind it."""
        return METHOD, self._residuals.n

    def margin(self, level: float, card: Device, context: Context) -> Sequence[MarginPart]:
        """Return what each part of the margin owes at `level`, largest first, and what would make it smaller."""
        group = residual_group(self.libraries)
        return explained(
            self._parts(context), level, group=f"{group}, public runs", traits={}, context=context, unknown=self.unknown
        )

    def _parts(self, context: Context) -> dict[str, Array]:
        """Return by part what may come on top of the point, bytes at `joined.LEVELS`."""
        residuals = self._residuals
        peak_bytes = self.reserved_bytes + context.bytes
        return {
            "allocator": sum_quantile.by_level(lambda level: peak_bytes * max(residuals.at(level), 0.0)),
            **above(context),
            "assumed": sum_quantile.uniform(self.reserved_bytes * len(self.unknown) * UNKNOWN_SHARE),
        }

    @property
    def knows_more(self) -> bool:
        """Whether it has seen more models like the job than the shipped artifact: of those with convolutions it has."""
        return residual_group(self.libraries) == CONVOLUTION

    @property
    def _residuals(self) -> Residuals:
        return RESIDUALS[residual_group(self.libraries)]
