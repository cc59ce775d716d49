"""What was learned, put to use: a corrected peak and bounds for one job.

reserved = simulated x exp(median residual)                          where learning helps; else as simulated
bound    = simulated x exp(quantile + conformal correction) + context
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from vramcast.learner.conformal import TOO_FEW, Calibration, Correction, keys_of
from vramcast.learner.features import NAMES
from vramcast.learner.residual import Array, ResidualQuantiles
from vramcast.learner.stacks import StackContext

MATMUL, CONVOLUTION = "matmul", "convolution"
_OUTSIDE_SHARE: Final = 0.1  # arbitrary: of a feature's range, by which a value may leave it
_MOST_OUTSIDE: Final = 3  # arbitrary: features outside of their range from which a job counts as unlike all that was learned
_WIDER: Final = 1.5  # arbitrary: by which such a job's bound moves out, in residuals


@dataclass(frozen=True, slots=True)
class Subject:
    """A job to correct.

    Attributes:
        features: See `vramcast.learner.features`.
        reserved: Simulated, bytes.
        gpu, family: For its calibration group; unknown ones fall back to coarser groups.
    """

    features: Mapping[str, float]
    reserved: int
    gpu: str = ""
    family: str = ""

    def row(self) -> list[float]:
        """Return the features as numbers in order."""
        return [float(self.features[name]) for name in NAMES]

    @property
    def segment(self) -> str:
        """Which of the two kinds of job it is: do convolutions take workspaces or not."""
        return segment_of(self.features)


def segment_of(features: Mapping[str, float]) -> str:
    """Return `convolution` where a library's workspaces are in the trace, else `matmul`."""
    return CONVOLUTION if features["workspace_count"] > 0 else MATMUL


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on the reserved peak at one level.

    Attributes:
        size_bytes: The bound.
        key: Whose runs it is calibrated on.
        n: How many groups of them.
    """

    size_bytes: int
    key: str
    n: float


@dataclass(slots=True)
class Learned:
    """A trained correction.

    Attributes:
        quantiles: The learner; None where nothing was learned.
        calibration: See `conformal`.
        helps: Segments in which the learner's median beats the plain simulation on models which it has not seen.
        contexts: By stack.
        ranges: Lowest and highest value of every feature that was seen.
        card: Facts for CARD.md: data, metrics, versions.
    """

    quantiles: ResidualQuantiles | None
    calibration: Calibration
    helps: frozenset[str] = frozenset()
    contexts: Mapping[str, StackContext] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)

    def residuals(self, subjects: Sequence[Subject]) -> Array:
        """Return the uncalibrated quantiles of each job's residual, n x levels; 0 where learning does not help."""
        found = np.zeros((len(subjects), len(self.calibration.levels)))
        rows = [i for i, subject in enumerate(subjects) if subject.segment in self.helps]
        if rows and self.quantiles is not None:
            found[rows] = self.quantiles.predict_quantiles(np.array([subjects[i].row() for i in rows]))
        return found

    def reserved(self, subject: Subject) -> int:
        """Return the corrected reserved peak, bytes."""
        median = self.residuals([subject])[0, self.calibration.levels.index(0.5)]
        return round(subject.reserved * math.exp(median))

    def bound(self, subject: Subject, level: float) -> Bound:
        """Return what the reserved peak stays below with probability `level`, any in (0, 1).

        It never falls when the level rises, and never below the point estimate.
        """
        quantiles = self.residuals([subject])[0]
        wider = _WIDER if self.is_unlike(subject) else 1.0
        lower = [known for known in self.calibration.levels if known < level]
        bounds = [self._at(quantiles, known, subject) for known in (*lower, level)]
        residual = max(value for value, _ in bounds)
        point = quantiles[self.calibration.levels.index(0.5)]
        residual = point + max(residual - point, 0.0) * wider
        return Bound(round(subject.reserved * math.exp(residual)), bounds[-1][1].key, bounds[-1][1].n)

    def _at(self, quantiles: Array, level: float, subject: Subject) -> tuple[float, Correction]:
        keys = (*keys_of(subject.gpu, subject.family), subject.segment)
        correction = self.calibration.correction(level, keys)
        return float(quantiles[correction.column]) + correction.value, correction

    def is_unlike(self, subject: Subject) -> bool:
        """Return whether the job is unlike all that was learned: several features lie outside of what was seen."""
        return len(self.outside(subject)) >= _MOST_OUTSIDE

    def outside(self, subject: Subject) -> list[str]:
        """Return the features which lie outside of what was seen."""
        found = []
        for name, (low, high) in self.ranges.items():
            room = _OUTSIDE_SHARE * (high - low)
            if not low - room <= subject.features[name] <= high + room:
                found.append(name)
        return found

    def promises(self, bound: Bound) -> bool:
        """Return whether enough runs stand behind a bound."""
        return bound.key != TOO_FEW
