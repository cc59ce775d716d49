"""The bound of an artifact, and the choice of the artifact in use.

The process peak includes the context of the stack: the measured one if it is known, or else the table's. The rest of a bound
comes from `vramcast.learner.model`, which the evaluation of artifacts uses too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vramcast.core.brief import brief
from vramcast.core.errors import ArtifactError, UsageError
from vramcast.core.extras import needed
from vramcast.core.location import FOLDER
from vramcast.core.text import shown
from vramcast.estimates.bounds.parts import MarginPart, above, explained
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.bounds.support import BoundSource, Support
from vramcast.hardware.context import Context
from vramcast.hardware.context import ContextSource as Origin
from vramcast.hardware.device import Device
from vramcast.learner import sum_quantile
from vramcast.learner.sum_quantile import Array

if TYPE_CHECKING:
    from vramcast.learner.examples import Example
    from vramcast.learner.model import LearnedModel, Subject
    from vramcast.learner.stacks import StackContext

VARIABLE = "VRAMCAST_ARTIFACT"
SHIPPED = "default"  # the artifact shipped with vramcast: models/default
NONE = "none"  # in place of an artifact's folder: the built-in rule alone
METHOD = "conformal residuals of similar jobs, joined with the context's"


@brief
@dataclass(frozen=True, slots=True)
class LearnedBound(BoundSource):
    """The bound of one job from an artifact.

    Attributes:
        artifact: Name of the artifact's folder.
        learned: The artifact.
        subject: The job in the artifact's terms, without a context, which depends on the card.
        libraries: Libraries that the job uses, by the names of `vramcast.learner.features.parts_of`.
        torch: Version of the torch that runs the job, which selects its stack.
        unknown: The unanswered calls, for explanations.
        at_least: Another source, which knows the job better: the bound is at least its bound at the levels that the artifact
            cannot guarantee, and at all levels if the job is unlike those behind the artifact.
    """

    artifact: str
    learned: LearnedModel
    subject: Subject
    libraries: tuple[str, ...]
    torch: str
    unknown: tuple[str, ...] = ()
    at_least: BoundSource | None = None
    _upper: dict[tuple[str, int, int], Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls, artifact: str, learned: LearnedModel, example: Example, unknown: tuple[str, ...], rule: PublicBound | None = None
    ) -> LearnedBound:
        """Return the bound of an example's job; a rule that rests on more models like the job serves as `at_least`."""
        from vramcast.learner.model import Subject

        subject = Subject.of(example)
        at_least = rule if rule is not None and rule.support.models > learned.models_like(subject) else None
        return cls(artifact, learned, subject, example.libraries, example.torch, unknown, at_least)

    def upper(self, card: Device, context: Context) -> Array:
        """Return the bytes of `card` that the job stays below at `sum_quantile.LEVELS`; see `BoundSource.upper`."""
        key = (card.key, context.bytes, context.high_bytes)
        if key not in self._upper:
            subject = self.on_card(card, context)
            above = sum_quantile.joined([part.above for part in self.learned.process_parts(subject)])
            found = self.learned.process(subject) + above
            if self.at_least is not None:
                levels = np.concatenate([[0.0], sum_quantile.LEVELS[:-1]])  # a bound is at the next of the levels
                others = self.is_out_of_distribution | (levels >= Support(self.learned.models_like(subject)).level)
                found = np.where(others, np.maximum(found, self.at_least.upper(card, context)), found)
            self._upper[key] = np.maximum.accumulate(found)
        return self._upper[key]

    def share_far_below(self, size_bytes: int, card: Device, context: Context) -> float:
        """Return the share of jobs like it that stay below a size; see `BoundSource.share_far_below`."""
        return self.learned.share_below(self.on_card(card, context), size_bytes)

    def context_on(self, card: Device, context: Context) -> Context:
        """Return the measured context of the card's stack, if there is one; see `BoundSource.context_on`."""
        known = self._measured(card)
        if known is None or context.source is Origin.SITE:
            return context
        low, point, high = context.added
        return replace(
            context,
            bytes=known.size_bytes + point + context.outside_bytes,
            low_bytes=max(known.low_bytes, 0) + low,
            high_bytes=known.high_bytes + high,
            provenance=f"the median of {known.n} measured runs on this card and software",
            assumed=bool(high),
            source=Origin.SITE,
            own_bytes=known.size_bytes,
            own_high_bytes=known.high_bytes,
        )

    def on_card(self, card: Device, assumed: Context) -> Subject:
        """Return the job with its context on a card: measured on its stack, or as assumed."""
        known = self._measured(card)
        if known is None:
            return replace(self.subject, context=assumed.bytes, beside=above(assumed), is_measured=False)
        _, point, high = assumed.added  # stacks are measured with jobs of one rank
        beside = {
            "context": sum_quantile.uniform(known.high_bytes - known.size_bytes),
            "libraries": sum_quantile.uniform(high - point),
        }
        size_bytes = known.size_bytes + point + assumed.outside_bytes
        return replace(self.subject, context=size_bytes, beside=beside, is_measured=True)

    @property
    def reserved(self) -> int:
        """The corrected reserved peak, in bytes."""
        return self.learned.reserved(self.subject)

    @property
    def is_out_of_distribution(self) -> bool:
        """True if the job is unlike all jobs that the artifact was trained on."""
        return self.learned.is_out_of_distribution(self.subject)

    def _measured(self, card: Device) -> StackContext | None:
        """Return the context of this card's stack: the one with this torch if there is one, or else the one with most runs."""
        of_card = [(name, one) for name, one in self.learned.contexts.items() if one.gpu == card.key]
        best = max(of_card, key=lambda pair: (self.torch in pair[0].split(", "), pair[1].n), default=None)
        return best[1].of(self.libraries) if best is not None else None

    def margin(self, level: float, card: Device, context: Context) -> Sequence[MarginPart]:
        """Return the parts of the margin at `level`, largest first."""
        subject = self.on_card(card, context)
        parts = {part.name: part.above for part in self.learned.process_parts(subject)}
        own = sum_quantile.at(sum_quantile.joined(list(parts.values())), level)
        of_both = self.quantile(level, card, context) - self.learned.process(subject)
        if self.at_least is not None and of_both > round(own):
            return self.at_least.margin(level, card, context)
        return explained(parts, level, traits=self.subject.traits, context=context, unknown=self.unknown)

    @property
    def support(self) -> Support:
        """The measured models of the job's class."""
        return Support(self.learned.models_like(self.subject))

    def method(self, level: float, card: Device) -> tuple[str, int]:
        """Return a description of the method at `level`, and the number of models behind it."""
        found = self.learned.process_bounds(self.subject, [level])[0]
        but = "" if found.is_promised else " (too few models to guarantee the level)"
        but += f", at least {self.at_least.method(level, card)[0]}" if but and self.at_least is not None else ""
        return f"{METHOD}, calibrated on {found.key}{but}", found.n


def bound_of(example: Example, learned: LearnedModel) -> BoundSource:
    """Return the bound that an estimate of the example's job has by default, if `learned` is the shipped artifact."""
    unknown = ("",) * example.unknown
    rule = PublicBound(example.reserved, frozenset(example.libraries), unknown, example.larger or 0)
    return rule if learned.lacks(example.traits) else LearnedBound.of(SHIPPED, learned, example, unknown, rule)


def chosen(artifact: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder of the chosen artifact, given or in $VRAMCAST_ARTIFACT; None without a choice, or for `none`."""
    wanted = _wanted(artifact)
    return named(wanted) if wanted not in (None, NONE) else None


def shipped(artifact: str | os.PathLike[str] | None) -> LearnedModel | None:
    """Return the shipped artifact, which serves the jobs that it covers; None if another, or none, was chosen."""
    return load(named(SHIPPED)) if _wanted(artifact) is None else None


def _wanted(artifact: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    return artifact if artifact is not None else os.environ.get(VARIABLE) or None


def named(artifact: str | os.PathLike[str] | None) -> Path:
    """Return the folder of an artifact; `default` is the shipped one, unless the current folder has a folder of that name."""
    if not isinstance(artifact, str | os.PathLike):
        raise UsageError(f"artifact is {shown(artifact)}: give its folder, or '{SHIPPED}'.")
    folder = Path(artifact)
    if folder == Path(SHIPPED) and not folder.exists():
        return FOLDER / "models" / SHIPPED
    return folder


def load(folder: Path) -> LearnedModel:
    """Return the artifact in `folder`, cached in memory until its file changes.

    Raises:
        ArtifactError: It is absent or damaged, or the learner's packages are not installed.
    """
    try:
        stamp = (folder / "artifact.json").stat().st_mtime_ns
    except OSError:
        stamp = 0
    return _load(folder, stamp)


@functools.lru_cache(maxsize=4)
def _load(folder: Path, stamp: int) -> LearnedModel:
    from vramcast.learner import artifact

    with needed(f"The artifact '{folder}' has trees, and", "learn", raises=ArtifactError):
        return artifact.load(folder)
