"""What was learned, put to use: corrected peaks and bounds for one job.

reserved = simulated x exp(median residual)                            where learning helps; else as simulated
process  = (simulated + context) x exp(median residual of the process)
bound    = the same with quantile + conformal correction in the median's place

Where nothing was learned about the process peak, it is the reserved one with the context. Above the median a bound is wider by
what is unknown: calls which nobody answered, and how far the context may lie off.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vramcast.errors import ArtifactError
from vramcast.learner.conformal import MOST_RESIDUAL, TOO_FEW, Array, Calibration, Correction, keys_of
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES, family_of
from vramcast.learner.stacks import StackContext
from vramcast.learner.traits import CONVOLUTION
from vramcast.tracer.job_result import UNKNOWN_SHARE

if TYPE_CHECKING:
    from vramcast.learner.residual import ResidualQuantiles

MATMUL: Final = "matmul"
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
        gpu: For its calibration group; an unknown one falls back to coarser groups.
        context: What its process takes beside, bytes.
        spread: By how much more that may be, bytes.
        is_measured: The context is one of measured runs, not of a table.
    """

    features: Mapping[str, float]
    reserved: int
    gpu: str = ""
    context: int = 0
    spread: int = 0
    is_measured: bool = False

    @classmethod
    def of(cls, example: Example) -> Subject:
        """Return an example as a job to correct, with the context that is in it: the only way from one to the other."""
        return cls(example.features, example.reserved, example.gpu, example.context)

    def row(self, names: Sequence[str]) -> list[float]:
        """Return these features as numbers in order."""
        share = self.context / (self.reserved + self.context)
        return [share if name == CONTEXT_SHARE else float(self.features[name]) for name in names]

    @property
    def keys(self) -> tuple[str, ...]:
        """What it is calibrated by, from the finest to the coarsest."""
        return keys_of(self.gpu, self.family, self.segment)

    @property
    def family(self) -> str:
        """What kind of model it is of, as its trace shows."""
        return family_of(self.features)

    @property
    def segment(self) -> str:
        """Which of the two kinds of job it is: does it convolve or not."""
        return CONVOLUTION if self.family == CONVOLUTION else MATMUL


def family_key(segment: str, family: str) -> str:
    """Return what names a family's jobs of one segment."""
    return f"{segment}|{family}"


def is_used(subject: Subject, active_segments: Collection[str], excluded_families: Collection[str]) -> bool:
    """Return whether the learner speaks about a job: it helps in its segment, and its family is not spared."""
    return subject.segment in active_segments and family_key(subject.segment, subject.family) not in excluded_families


@dataclass(frozen=True, slots=True)
class BoundAtLevel:
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
        active_segments: Segments in which the learner's median beats the plain simulation on models which it has not seen.
        names: The features which it reads, in order.
        excluded_families: Families in which it does not help though it does in their segment, see `family_key`.
    """

    quantiles: ResidualQuantiles | None
    calibration: Calibration
    active_segments: frozenset[str] = frozenset()
    names: tuple[str, ...] = NAMES
    excluded_families: frozenset[str] = frozenset()

    def residuals(self, subjects: Sequence[Subject]) -> Array:
        """Return the uncalibrated quantiles of each job's residual, n x levels; 0 where learning does not help."""
        found = np.zeros((len(subjects), len(self.calibration.levels)))
        rows = [i for i, subject in enumerate(subjects) if is_used(subject, self.active_segments, self.excluded_families)]
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
        notes: What a user of it should know: it was made by an older version, say.
    """

    reserved_head: Head
    process_head: Head | None = None
    contexts: Mapping[str, StackContext] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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

    def bound(self, subject: Subject, level: float) -> BoundAtLevel:
        """Return what the reserved peak stays below with probability `level`, any in (0, 1).

        It never falls when the level rises, and never below the point estimate.
        """
        return self.bounds(subject, [level])[0]

    def bounds(self, subject: Subject, levels: Sequence[float]) -> list[BoundAtLevel]:
        """Return `bound` at each level; the trees are asked once."""
        found = self._bounds(self.reserved_head, subject, subject.reserved, levels)
        return [
            replace(one, size_bytes=round(one.size_bytes * _widening(subject, level)))
            for level, one in zip(levels, found, strict=True)
        ]

    def process_bound(self, subject: Subject, level: float) -> BoundAtLevel:
        """Return what the process peak stays below with probability `level`, any in (0, 1)."""
        return self.process_bounds(subject, [level])[0]

    def process_bounds(self, subject: Subject, levels: Sequence[float]) -> list[BoundAtLevel]:
        """Return `process_bound` at each level."""
        context, spread = subject.context, subject.spread
        if self.process_head is None:
            reserved = self.bounds(subject, levels)
        else:
            found = self._bounds(self.process_head, subject, subject.reserved + context, levels)
            reserved = [
                replace(one, size_bytes=round((one.size_bytes - context) * _widening(subject, level)))
                for level, one in zip(levels, found, strict=True)
            ]
            # What was learned from process peaks has seen how a measured context varies, but nothing of one from a table.
            spread = 0 if subject.is_measured else spread
        return [
            replace(one, size_bytes=one.size_bytes + context + round(spread * _above_median(level)))
            for level, one in zip(levels, reserved, strict=True)
        ]

    def _bounds(self, head: Head, subject: Subject, simulated: int, levels: Sequence[float]) -> list[BoundAtLevel]:
        quantiles = head.residuals([subject])[0]
        point = head.median(quantiles)
        wider = _WIDER if self.is_out_of_distribution(subject) else 1.0
        found = []
        for level in levels:
            upper, correction = head.upper(quantiles, level, subject)
            size_bytes = round(simulated * math.exp(point + (upper - point) * wider))
            found.append(BoundAtLevel(size_bytes, correction.key, correction.n))
        return found

    def is_out_of_distribution(self, subject: Subject) -> bool:
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

    def promises(self, bound: BoundAtLevel) -> bool:
        """Return whether enough runs stand behind a bound."""
        return bound.key != TOO_FEW


def _above_median(level: float) -> float:
    """Return where a level lies between the median, 0, and certainty, 1."""
    return max(level - 0.5, 0.0) / 0.5


def _widening(subject: Subject, level: float) -> float:
    """Return by which factor a bound on the reserved peak is wider for calls which nobody answered."""
    return 1 + subject.features["unknown"] * UNKNOWN_SHARE * _above_median(level)


def _point(head: Head, subject: Subject, simulated: int) -> int:
    return round(simulated * math.exp(head.median(head.residuals([subject])[0])))
