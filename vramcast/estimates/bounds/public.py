"""The built-in bound: quantiles of the residuals of uncorrected estimates on public measured runs.

    quantile(q) = process + the q-quantile of the sum of the family's residual, the context's error and unknown calls

`vramcast.learner.sum_quantile` joins the parts. The rule applies if no artifact covers a job
(`vramcast.estimates.bounds.learned`). A residual is measured / estimated process peak - 1. Its quantiles are empirical, in two
families: jobs with workspaces chosen by a convolution library, and all others. They come from the runs named below; nothing is
fitted to single rows, and the simulator's rules do not use them. `make accuracy` prints the table again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from vramcast.core.brief import brief
from vramcast.estimates.bounds.parts import MarginPart, above, explained
from vramcast.estimates.bounds.support import BoundSource, Support
from vramcast.hardware.context import Context
from vramcast.hardware.device import Device
from vramcast.learner import sum_quantile
from vramcast.learner.sum_quantile import Array
from vramcast.learner.traits import CONVOLUTION
from vramcast.tracer.protocol.job_result import UNKNOWN_SHARE

METHOD: Final = "empirical residual quantiles by family on public measured runs; not yet calibrated on your cluster"


@dataclass(frozen=True, slots=True)
class Residuals:
    """Empirical upper quantiles of measured / estimated process peak - 1: ascending levels, non-decreasing values.

    Attributes:
        n: Number of runs.
        levels, values: The quantiles.
        models: Number of distinct models in the smallest data set, because each level has the worst value of the sets.
    """

    n: int
    levels: tuple[float, ...]
    values: tuple[float, ...]
    models: int = 0

    def at(self, level: float) -> float:
        """Return the quantile of the residuals at `level`, linear between the listed levels."""
        return float(np.interp(level, self.levels, self.values))


_LEVELS = (0.5, 0.9, 0.95, 0.99, 1.0)
# measured: `python -m benchmarks.accuracy.report` on the public runs of docs/accuracy.md, 2026-11, torch 2.14.1, with cuDNN
# 9.12 instead of the versions in the stacks of 2024 and 2025. Each level has the worst value of the data sets with at least 50
# runs, so that a large easy set does not hide a hard one: xMem's 59 transformers (7 models) and 300 MLPs; xMem's 57 CNNs (12
# models, sm_86 and sm_89) and 148 timm jobs (sm_80; two more, sampled during a search for plans, are left out). The median is
# 0 by definition: the point estimate is not corrected here.
RESIDUALS: Final[dict[str, Residuals]] = {
    "matmul": Residuals(359, _LEVELS, (0.0, 0.0084, 0.0211, 0.1954, 0.1954), models=7),
    CONVOLUTION: Residuals(205, _LEVELS, (0.0, 0.0289, 0.1392, 0.1885, 0.2935), models=12),
}


def residual_group(libraries: frozenset[str]) -> str:
    """Return the family of a job, a key of RESIDUALS: convolution if cuDNN chooses workspaces."""
    return CONVOLUTION if "cudnn" in libraries else "matmul"


@brief
@dataclass(frozen=True, slots=True)
class PublicBound(BoundSource):
    """The bound of one job from the residuals of public runs.

    The quantiles come from other people's jobs and cards, and hold for similar jobs. The 0.5 quantile is the point estimate by
    definition: this bound does not correct it.

    Attributes:
        reserved_bytes: The estimated peak of reserved segments.
        libraries: Libraries that the job uses.
        unknown: Calls that were rejected or answered with an assumption; each widens the bound.
        least_bytes: The reserved peak with the plans of another cuDNN, which the bound covers; 0 without one.
    """

    reserved_bytes: int
    libraries: frozenset[str]
    unknown: tuple[str, ...] = ()
    least_bytes: int = 0

    artifact: ClassVar[None] = None  # no artifact
    is_out_of_distribution: ClassVar[None] = None  # unknown

    def upper(self, card: Device, context: Context) -> Array:
        """Return the bytes of `card` that the job stays below at `sum_quantile.LEVELS`; see `BoundSource.upper`."""
        return self.reserved_bytes + context.bytes + sum_quantile.joined(list(self._parts(context).values()))

    def method(self, level: float, card: Device) -> tuple[str, int]:
        """Return a description of the method, and the number of runs behind it."""
        return METHOD, self._residuals.n

    def margin(self, level: float, card: Device, context: Context) -> Sequence[MarginPart]:
        """Return the parts of the margin at `level`, largest first."""
        return explained(self._parts(context), level, traits={}, context=context, unknown=self.unknown)

    def _parts(self, context: Context) -> dict[str, Array]:
        """Return the bytes above the point estimate at `sum_quantile.LEVELS`, by part."""
        residuals = self._residuals
        peak_bytes = self.reserved_bytes + context.bytes
        least = max(self.least_bytes - self.reserved_bytes, 0)

        def allocator(level: float) -> float:
            return max(peak_bytes * residuals.at(level), least if level > 0.5 else 0.0, 0.0)

        return {
            "allocator": sum_quantile.by_level(allocator),
            **above(context),
            "assumed": sum_quantile.uniform(self.reserved_bytes * len(self.unknown) * UNKNOWN_SHARE),
        }

    @property
    def support(self) -> Support:
        """The measured models behind the bound."""
        return Support(self._residuals.models)

    @property
    def _residuals(self) -> Residuals:
        return RESIDUALS[residual_group(self.libraries)]
