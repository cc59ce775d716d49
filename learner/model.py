"""Application of a trained correction: corrected peaks and bounds for one job.

    reserved = simulated, or the base with the median residual (`scale.py`) where that is nearer on unseen models
    process  = the same with the context
    base     = simulated, or simulated with the plans of another cuDNN if those take more
    bound    = the point + a quantile of the possible excess:
                 allocator   residuals of similar jobs, calibrated (`conformal.py`)
                 context     errors of such contexts (`vramcast.hardware.context`); likewise libraries
                 assumed     for each kind of unanswered call
               combined as independent parts (`sum_quantile.py`), or by joint residuals if process peaks were measured

If nothing was learned about the process peak, it is the reserved peak plus the context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from vramcast.core.brief import brief
from vramcast.core.errors import ArtifactError
from vramcast.core.units import GIB
from vramcast.learner import sum_quantile
from vramcast.learner.conformal import MOST_RESIDUAL, Array, Calibration
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES, family_of
from vramcast.learner.forest import Quantiles
from vramcast.learner.scale import OFFSET_BYTES, peak_of, residual_of
from vramcast.learner.stacks import StackContext
from vramcast.learner.traits import CONVOLUTION, NO_WORSE, Traits, completed
from vramcast.tracer.protocol.job_result import UNKNOWN_SHARE

MATMUL: Final = "matmul"
# Kinds of operators for which a library may keep memory of its own: so much for each of a step's blocks is a function of these.
_PER_GIB: Final = ("depthwise", "convolution", "matmul", "attention", "recurrent")
CONTEXT_SHARE: Final = "context_share"  # share in the simulated process peak: it scales a residual of the reserved peak down
LOG_LARGER: Final = "log_larger"  # log2 of the reserved peak with the other cuDNN's plans / without them; 0: there are none
RESERVED_NAMES: Final = (*NAMES, LOG_LARGER, *(f"{kind}_per_gib" for kind in _PER_GIB))
PROCESS_NAMES: Final = (*RESERVED_NAMES, CONTEXT_SHARE)
_OUTSIDE_SHARE: Final = 0.1  # arbitrary: share of a feature's range by which a value may leave it
# arbitrary: a twentieth of the features; a job with this many outside counts as unlike the training data
_MOST_OUTSIDE: Final = 6
_FEWEST_MODELS: Final = 5  # arbitrary: models with a trait's value that are needed to cover a job's class
_ANY: Final = ("gpu", "size")  # traits that need no models of their own
_WIDER: Final = 1.5  # arbitrary: factor on the residuals of such a job's bound


@brief
@dataclass(frozen=True, slots=True)
class Subject:
    """A job to correct.

    Attributes:
        features: See `vramcast.learner.features`; {} if they are not needed.
        reserved: Simulated reserved peak in bytes.
        larger: The simulated reserved peak with the plans of a second cuDNN if it is larger, in bytes; bounds start from it.
        traits: Its class, which selects the calibration.
        context: Memory of its process outside the reserved peak, in bytes.
        beside: By part of the context, its possible excess: bytes at `joined.LEVELS`.
        is_measured: The context comes from measured runs, not from a table.
        unknown: Kinds of unanswered calls.
    """

    features: Mapping[str, float]
    reserved: int
    traits: Traits = field(default_factory=dict)
    context: int = 0
    beside: Mapping[str, Array] = field(default_factory=dict)
    is_measured: bool = False
    unknown: int = 0
    larger: int = 0

    @classmethod
    def of(cls, example: Example) -> Subject:
        """Return an example as a job to correct, with its own context; all conversions use this function."""
        features, traits = example.features, dict(example.traits)
        if not traits and features:  # an example older than traits
            traits = {"operators": family_of(features), "gpu": example.gpu}
        traits = completed(traits, features)
        return cls(features, example.reserved, traits, example.context, unknown=example.unknown, larger=example.larger or 0)

    @property
    def base(self) -> int:
        """The reserved peak from which bounds start, in bytes."""
        return max(self.reserved, self.larger)

    def row(self, names: Sequence[str]) -> list[float]:
        """Return these features as numbers in order."""
        known = {
            **self.features,
            LOG_LARGER: math.log2(self.base / self.reserved),
            CONTEXT_SHARE: self.context / (self.reserved + self.context),
            **{f"{kind}_per_gib": self.features[f"count_{kind}"] * GIB / (self.base + OFFSET_BYTES) for kind in _PER_GIB},
        }
        return [float(known[name]) for name in names]

    @property
    def family(self) -> str:
        """The kind of model, determined from its trace."""
        return self.traits.get("operators", "")

    @property
    def segment(self) -> str:
        """The segment of the job: with or without convolutions."""
        return CONVOLUTION if self.family == CONVOLUTION else MATMUL

    @property
    def family_key(self) -> str:
        """The key of its family: the segment and kind of model, whether it trains, and the kind of its convolutions."""
        convolutions = self.traits.get("convolutions", "") if self.segment == CONVOLUTION else ""
        return " ".join(filter(None, (f"{self.segment}|{self.family}", self.traits.get("mode", ""), convolutions)))


def family_name(family_key: str) -> str:
    """Return a family's key as people read it: its segment is the kind of model, or has no convolutions."""
    return family_key.partition("|")[2] or family_key


@dataclass(frozen=True, slots=True)
class Scope:
    """The jobs for which trees are used.

    Attributes:
        families: Those in which they help on unseen models, see `Subject.family_key`; up to schema 6, whole segments.
        excluded: Families of such a segment in which they do not.
    """

    families: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()

    def __contains__(self, subject: Subject) -> bool:
        words = subject.family_key.split()
        keys = {subject.segment, *(" ".join(words[: n + 1]) for n in range(len(words)))}
        return not keys.isdisjoint(self.families) and keys.isdisjoint(self.excluded)

    def __str__(self) -> str:
        but = f", except for {', '.join(map(family_name, sorted(self.excluded)))}" if self.excluded else ""
        return (", ".join(map(family_name, sorted(self.families))) or "nowhere") + but


@dataclass(frozen=True, slots=True)
class BoundAtLevel:
    """A bound on a peak at one level.

    Attributes:
        size_bytes: The bound.
        key: The group of runs that calibrates it.
        n: Number of models in that group.
        is_promised: Whether the models are enough for a guarantee.
    """

    size_bytes: int
    key: str
    n: int
    is_promised: bool


@brief
@dataclass(slots=True)
class Head:
    """The correction of one peak.

    Attributes:
        quantiles: The learner; None: nothing was learned.
        calibration: See `conformal`.
        bounds: The jobs whose bounds use the learner: it lowers the loss of bounds on unseen models.
        points: The jobs whose point is corrected too: the learner's median is nearer on unseen models.
        names: The features that it reads, in order.
        offset: Of the residuals' scale, in bytes; 0 in artifacts that are older than it.
    """

    quantiles: Quantiles | None
    calibration: Calibration
    bounds: Scope = Scope()
    points: Scope = Scope()
    names: tuple[str, ...] = RESERVED_NAMES
    offset: int = OFFSET_BYTES

    def residuals(self, subjects: Sequence[Subject]) -> Array:
        """Return the uncalibrated quantiles of each job's residual, n x levels; 0 where bounds do not use the learner."""
        return self._predicted(subjects, self.bounds)

    def points_of(self, subjects: Sequence[Subject], contexts: Sequence[int]) -> Array:
        """Return the point of each job with a context, in bytes."""
        medians = self._predicted(subjects, self.points)[:, self.calibration.levels.index(0.5)]
        return np.array([
            peak_of(median, subject.base + context, self.offset) if subject in self.points else subject.reserved + context
            for subject, context, median in zip(subjects, contexts, medians.tolist(), strict=True)
        ])  # fmt: skip

    def point(self, subject: Subject, context: int) -> int:
        """Return the point of one job with a context, in bytes."""
        return round(float(self.points_of([subject], [context])[0]))

    def _predicted(self, subjects: Sequence[Subject], scope: Scope) -> Array:
        """Return the learner's quantiles of the jobs in a scope, n x levels; 0 for the others."""
        found = np.zeros((len(subjects), len(self.calibration.levels)))
        rows = [i for i, subject in enumerate(subjects) if subject in scope and subject.features]
        if rows and self.quantiles is not None:
            found[rows] = self.quantiles.predict_quantiles(np.array([subjects[i].row(self.names) for i in rows]))
            if not (np.abs(found) <= MOST_RESIDUAL).all():
                raise ArtifactError(
                    f"The artifact's trees predict e^{np.abs(found).max():.0f} times the simulated memory: train it again."
                )
        return found

    def upper(self, quantiles: Array, levels: Sequence[float], traits: Traits, least: float) -> list[float]:
        """Return the calibrated residual at each level: never below `least` or the value at a lower level."""
        asked = sorted({*levels, *self.calibration.levels})
        corrections = self.calibration.corrections(asked, traits)
        residuals = [float(quantiles[one.column]) + one.value for one in corrections]
        highest = np.maximum.accumulate([max(value, least) for value in residuals])
        by_level = dict(zip(asked, highest.tolist(), strict=True))
        return [by_level[level] for level in levels]


@dataclass(frozen=True, slots=True)
class Part:
    """The contribution of one part of a peak to a bound.

    Attributes:
        name: `allocator`, `context`, `libraries`, `assumed`; `process` if allocator and context were measured together.
        above: The possible excess above the point: bytes at `joined.LEVELS`.
    """

    name: str
    above: Array


@brief
@dataclass(slots=True)
class LearnedModel:
    """A trained correction.

    Attributes:
        reserved_head: Correction of the reserved peak.
        process_head: Correction of the process peak; None: too few were measured.
        contexts: Contexts by stack.
        ranges: Lowest and highest value of every feature in the training data.
        n_models: Number of calibrating models by trait and value.
        card: Facts for CARD.md: data, metrics, versions.
    """

    reserved_head: Head
    process_head: Head | None = None
    contexts: Mapping[str, StackContext] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    n_models: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def heads(self) -> dict[str, Head]:
        """The heads that exist, by peak."""
        heads = {"reserved": self.reserved_head, "process": self.process_head}
        return {peak: head for peak, head in heads.items() if head is not None}

    def reserved(self, subject: Subject) -> int:
        """Return the corrected reserved peak, bytes."""
        return self.reserved_head.point(subject, 0)

    def process(self, subject: Subject) -> int:
        """Return the corrected process peak, bytes."""
        if self.process_head is None:
            return self.reserved(subject) + subject.context
        return self.process_head.point(subject, subject.context)

    @property
    def reads_features(self) -> bool:
        """True if the correction needs more of a job than its traits."""
        return bool(self.ranges) or any(head.quantiles is not None for head in self.heads.values())

    def bounds(self, subject: Subject, levels: Sequence[float]) -> list[BoundAtLevel]:
        """Return upper bounds of the reserved peak for each of `levels`, any in (0, 1).

        A bound never falls when the level rises, and is never below the point estimate.
        """
        return self._bounds(self.reserved_head, subject, levels, self.reserved(subject), self.parts(subject))

    def process_bounds(self, subject: Subject, levels: Sequence[float]) -> list[BoundAtLevel]:
        """Return upper bounds of the process peak for each of `levels`, any in (0, 1)."""
        head = self.process_head or self.reserved_head
        return self._bounds(head, subject, levels, self.process(subject), self.process_parts(subject))

    def parts(self, subject: Subject) -> list[Part]:
        """Return the parts of the reserved peak's bound, each with its own quantiles."""
        return [self._part("allocator", self.reserved_head, subject, 0), *_assumed(subject)]

    def process_parts(self, subject: Subject) -> list[Part]:
        """Return the parts of the process peak's bound."""
        beside = [Part(name, above) for name, above in subject.beside.items()]
        if self.process_head is None:
            return [*self.parts(subject), *beside]
        process = self._part("process", self.process_head, subject, subject.context)
        # The head of the process peak has seen how a measured context varies, but not how a table's context does.
        return [process, *_assumed(subject), *([] if subject.is_measured else beside)]

    def _part(self, name: str, head: Head, subject: Subject, context: int) -> Part:
        """Return a part of a bound: the excess over the point, from residuals that are relative to the base."""
        quantiles, base = head.residuals([subject])[0], subject.base + context
        point = head.point(subject, context)
        least = float(residual_of(point, base, head.offset))
        wider = _WIDER if self.is_out_of_distribution(subject) else 1.0
        upper = np.array(head.upper(quantiles, sum_quantile.LEVELS.tolist(), self.as_seen(subject.traits), least))
        return Part(name, np.asarray(peak_of(least + (upper - least) * wider, base, head.offset)) - point)

    def _bounds(
        self, head: Head, subject: Subject, levels: Sequence[float], point: int, parts: Sequence[Part]
    ) -> list[BoundAtLevel]:
        above = sum_quantile.joined([part.above for part in parts])
        traits = self.as_seen(subject.traits)
        corrections = head.calibration.corrections(levels, traits)
        return [
            BoundAtLevel(point + round(sum_quantile.at(above, level)), one.key, one.n, one.is_promised)
            for level, one in zip(levels, corrections, strict=True)
        ]

    def share_below(self, subject: Subject, size_bytes: int) -> float:
        """Return the share of jobs like it with a process peak below a size: for sizes below the median, 0.5 at most."""
        head, context = self.process_head or self.reserved_head, subject.context
        beside = context if self.process_head is not None else 0
        column = head.calibration.levels.index(0.5)
        least = float(residual_of(max(size_bytes - context + beside, 1), subject.base + beside, head.offset))
        path = head.calibration.groups.path(self.as_seen(subject.traits))
        score = least - float(head.residuals([subject])[0][column])
        return min(float(head.calibration.distribution(column, path).below(np.array([score]))[0]), 0.5)

    def models_like(self, subject: Subject) -> int:
        """Return the number of measured models in the job's class."""
        head = self.process_head or self.reserved_head
        return head.calibration.groups.of_class(self.as_seen(subject.traits)).n_models

    def is_out_of_distribution(self, subject: Subject) -> bool:
        """Return whether the job is unlike the training data: several features are outside their range."""
        return len(self.outside(subject)) >= _MOST_OUTSIDE

    def outside(self, subject: Subject) -> list[str]:
        """Return the features that are outside the range of the training data."""
        found = []
        for name, (low, high) in self.ranges.items() if subject.features else ():
            room = _OUTSIDE_SHARE * (high - low)
            if not low - room <= subject.features[name] <= high + room:
                found.append(name)
        return found

    def lacks(self, traits: Traits) -> list[str]:
        """Return the traits of a job with too few models in the training data; none: the job's class is covered.

        Card and size are left out: bounds are relative, and depend on the card only if the data show it.
        """
        recorded = self.n_models or traits  # an artifact may be older than a trait
        return [
            f"{trait} {value}"
            for trait, value in self.as_seen(traits).items()
            if trait in recorded and trait not in _ANY and not self._knows(trait, value)
        ]

    def as_seen(self, traits: Traits) -> Traits:
        """Return a job's traits, replacing those that were rarely seen by ones that are no better, if there are such."""
        return {
            trait: NO_WORSE[trait, value] if (trait, value) in NO_WORSE and not self._knows(trait, value) else value
            for trait, value in traits.items()
        }

    def _knows(self, trait: str, value: str) -> bool:
        return self.n_models.get(trait, {}).get(value, 0) >= _FEWEST_MODELS


def _assumed(subject: Subject) -> list[Part]:
    """Return the part of unanswered calls, if there are any."""
    above = sum_quantile.uniform(subject.reserved * subject.unknown * UNKNOWN_SHARE)
    return [Part("assumed", above)] if subject.unknown else []
