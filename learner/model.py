"""What was learned, put to use: corrected peaks and bounds for one job.

reserved = simulated x exp(median residual)                            where learning helps; else as simulated
process  = (simulated + context) x exp(median residual of the process)
bound    = the same with quantile + conformal correction in the median's place

Where nothing was learned about the process peak, it is the reserved one with the context.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from vramcast.errors import ArtifactError
from vramcast.learner.conformal import TOO_FEW, Calibration, Correction, keys_of
from vramcast.learner.features import NAMES
from vramcast.learner.residual import MOST_RESIDUAL, Array, ResidualQuantiles
from vramcast.learner.stacks import StackContext

MATMUL, CONVOLUTION = "matmul", "convolution"
CONTEXT_SHARE: Final = "context_share"  # of the process peak, as simulated: what a residual of the reserved part loses in it
PROCESS_NAMES: Final = (*NAMES, CONTEXT_SHARE)
_OUTSIDE_SHARE: Final = 0.1  # arbitrary: of a feature's range, by which a value may leave it
_MOST_OUTSIDE: Final = (
    6  # arbitrary: a twentieth of the features; from so many outside a job counts as unlike all that was learned
)
_WIDER: Final = 1.5  # arbitrary: by which such a job's bound moves out, in residuals


@dataclass(frozen=True, slots=True)
class Subject:
    """A job to correct.

    Attributes:
        features: See `vramcast.learner.features`.
        reserved: Simulated, bytes.
        gpu, family: For its calibration group; unknown ones fall back to coarser groups.
        context: What its process takes beside, bytes.
    """

    features: Mapping[str, float]
    reserved: int
    gpu: str = ""
    family: str = ""
    context: int = 0

    def row(self, names: Sequence[str]) -> list[float]:
        """Return these features as numbers in order."""
        share = self.context / (self.reserved + self.context)
        return [share if name == CONTEXT_SHARE else float(self.features[name]) for name in names]

    @property
    def keys(self) -> tuple[str, ...]:
        """What it is calibrated by, from the finest to the coarsest."""
        return (*keys_of(self.gpu, self.family), self.segment)

    @property
    def segment(self) -> str:
        """Which of the two kinds of job it is: do convolutions take workspaces or not."""
        return segment_of(self.features)


def spared_key(segment: str, family: str) -> str:
    """Return what names a family's jobs of one segment."""
    return f"{segment}|{family}"


def is_used(subject: Subject, helps: Collection[str], spares: Collection[str]) -> bool:
    """Return whether the learner speaks about a job: it helps in its segment, and its family is not spared."""
    return subject.segment in helps and spared_key(subject.segment, subject.family) not in spares


def segment_of(features: Mapping[str, float]) -> str:
    """Return `convolution` where a library's workspaces are in the trace, else `matmul`."""
    return CONVOLUTION if features["workspace_count"] > 0 else MATMUL


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on a peak at one level.

    Attributes:
        size_bytes: The bound.
        key: Whose runs it is calibrated on.
        n: How many groups of them.
    """

    size_bytes: int
    key: str
    n: float


@dataclass(slots=True)
class Head:
    """What was learned about one peak.

    Attributes:
        quantiles: The learner; None where nothing was learned.
        calibration: See `conformal`.
        helps: Segments in which the learner's median beats the plain simulation on models which it has not seen.
        names: The features which it reads, in order.
        spares: Families in which it does not help though it does in their segment, see `spared_key`.
    """

    quantiles: ResidualQuantiles | None
    calibration: Calibration
    helps: frozenset[str] = frozenset()
    names: tuple[str, ...] = NAMES
    spares: frozenset[str] = frozenset()

    def residuals(self, subjects: Sequence[Subject]) -> Array:
        """Return the uncalibrated quantiles of each job's residual, n x levels; 0 where learning does not help."""
        found = np.zeros((len(subjects), len(self.calibration.levels)))
        rows = [i for i, subject in enumerate(subjects) if is_used(subject, self.helps, self.spares)]
        if rows and self.quantiles is not None:
            found[rows] = self.quantiles.predict_quantiles(np.array([subjects[i].row(self.names) for i in rows]))
            if not (np.abs(found) <= MOST_RESIDUAL).all():
                raise ArtifactError(
                    f"The artifact's trees answer e^{np.abs(found).max():.0f} times the simulated memory: train it again."
                )
        return found

    def median(self, quantiles: Array) -> float:
        """Return the median among one job's quantiles."""
        return float(quantiles[self.calibration.levels.index(0.5)])

    def upper(self, quantiles: Array, level: float, subject: Subject) -> tuple[float, Correction]:
        """Return the calibrated residual at `level`: never below the median, nor below that of a lower level."""
        lower = [known for known in self.calibration.levels if known < level]
        bounds = [self._at(quantiles, known, subject) for known in (*lower, level)]
        return max(self.median(quantiles), *(value for value, _ in bounds)), bounds[-1][1]

    def _at(self, quantiles: Array, level: float, subject: Subject) -> tuple[float, Correction]:
        correction = self.calibration.correction(level, subject.keys)
        return float(quantiles[correction.column]) + correction.value, correction


@dataclass(slots=True)
class Learned:
    """A trained correction.

    Attributes:
        reserved_head: Of the reserved peak.
        process_head: Of the process peak; None where too few were measured.
        contexts: By stack.
        ranges: Lowest and highest value of every feature that was seen.
        card: Facts for CARD.md: data, metrics, versions.
    """

    reserved_head: Head
    process_head: Head | None = None
    contexts: Mapping[str, StackContext] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def heads(self) -> dict[str, Head]:
        """The heads that there are, by peak."""
        heads = {"reserved": self.reserved_head, "process": self.process_head}
        return {peak: head for peak, head in heads.items() if head is not None}

    def reserved(self, subject: Subject) -> int:
        """Return the corrected reserved peak, bytes."""
        return _point(self.reserved_head, subject, subject.reserved)

    def process(self, subject: Subject) -> int:
        """Return the corrected process peak, bytes."""
        if self.process_head is None:
            return self.reserved(subject) + subject.context
        return _point(self.process_head, subject, subject.reserved + subject.context)

    def bound(self, subject: Subject, level: float) -> Bound:
        """Return what the reserved peak stays below with probability `level`, any in (0, 1).

        It never falls when the level rises, and never below the point estimate.
        """
        return self.bounds(subject, [level])[0]

    def bounds(self, subject: Subject, levels: Sequence[float]) -> list[Bound]:
        """Return `bound` at each level; the trees are asked once."""
        return self._bounds(self.reserved_head, subject, subject.reserved, levels)

    def process_bound(self, subject: Subject, level: float) -> Bound:
        """Return what the process peak stays below with probability `level`, any in (0, 1)."""
        return self.process_bounds(subject, [level])[0]

    def process_bounds(self, subject: Subject, levels: Sequence[float]) -> list[Bound]:
        """Return `process_bound` at each level."""
        if self.process_head is None:
            return [Bound(one.size_bytes + subject.context, one.key, one.n) for one in self.bounds(subject, levels)]
        return self._bounds(self.process_head, subject, subject.reserved + subject.context, levels)

    def _bounds(self, head: Head, subject: Subject, simulated: int, levels: Sequence[float]) -> list[Bound]:
        quantiles = head.residuals([subject])[0]
        point = head.median(quantiles)
        wider = _WIDER if self.is_unlike(subject) else 1.0
        found = []
        for level in levels:
            upper, correction = head.upper(quantiles, level, subject)
            size_bytes = round(simulated * math.exp(point + (upper - point) * wider))
            found.append(Bound(size_bytes, correction.key, correction.n))
        return found

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


def _point(head: Head, subject: Subject, simulated: int) -> int:
    return round(simulated * math.exp(head.median(head.residuals([subject])[0])))
