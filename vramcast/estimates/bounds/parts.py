"""The parts of a bound's margin: the size of each, its cause, and its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from vramcast.core.brief import brief
from vramcast.core.units import gib
from vramcast.hardware.context import Context
from vramcast.learner import sum_quantile
from vramcast.learner.sum_quantile import Array

# Remedies for traits that widen a class, by trait and value; the first that applies is shown.
_OF_TRAITS: Final[tuple[tuple[str, str, str], ...]] = (
    ("values", "drawn", "measure this job once on the card, because its shapes depend on data"),
    ("batches", "vary", "pad all batches to one length"),
    ("torch", "other", "install the torch version of the job's stack here (pip install torch==VERSION)"),
    ("plans", "other", "get the cuDNN of the job's stack (vramcast doctor --get-cudnn VERSION), if it is 9.12 or newer"),
    ("speed", "decides", "add --bracket, which also runs the job on an infinitely slow card"),
)
_ONCE: Final = "measure this job once on the card"
# Causes for another run of the job to reserve more, and their remedies.
_OTHER_RUNS: Final = {
    "values": ("another run, with the largest possible shapes, reserves more", _ONCE),
    "speed": ("another run, on an infinitely slow card, reserves more", _ONCE),
    "growth": ("the whole evaluation keeps more memory than its observed part", "move the kept tensors to the host"),
}
_MEASURED: Final = "measure similar jobs on the card and calibrate (vramcast measure, then vramcast learn)"
_CONTEXT: Final = "measure the context once on the card (vramcast doctor --measure-context)"
_LIBRARIES: Final = "measure one job with this number of ranks on the cluster (vramcast measure)"


@brief
@dataclass(frozen=True, slots=True)
class MarginPart:
    """One part of a margin.

    Attributes:
        part: allocator, context, libraries or assumed; process if allocator and context were measured together.
        size_bytes: Its share of the margin; the parts sum to the margin.
        saves_bytes: Bytes by which the bound would shrink if this part were known.
        because: Cause of its width.
        remedy: Step that makes it smaller.
    """

    part: str
    size_bytes: int
    saves_bytes: int
    because: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.because}; to save up to {gib(self.saves_bytes)}, {self.remedy}"


def above(context: Context) -> dict[str, Array]:
    """Return the bytes by which each part of a context may exceed its point estimate, at `sum_quantile.LEVELS`."""
    by_level = [context.parts_above(level) for level in sum_quantile.LEVELS.tolist()]
    return {name: np.array([parts[name] for parts in by_level], np.float64) for name in by_level[0]}


def explained(
    parts: Mapping[str, Array], level: float, *, traits: Mapping[str, str], context: Context, unknown: Sequence[str]
) -> tuple[MarginPart, ...]:
    """Return each part's share of the margin, largest first; parts without a share are left out.

    The margin is divided in proportion to the bytes that each part alone would save.

    Args:
        parts: Bytes above the point estimate at `sum_quantile.LEVELS`, by part.
        level: Level of the bound.
        traits: The job's class.
        context: The context, with its source.
        unknown: The unanswered calls.
    """
    margin = sum_quantile.at(sum_quantile.joined(list(parts.values())), level)
    without = {
        name: sum_quantile.at(sum_quantile.joined([part for other, part in parts.items() if other != name]), level)
        for name in parts
    }
    saves = {name: max(margin - rest, 0.0) for name, rest in without.items()}
    total = sum(saves.values())
    found = []
    for name, saved in saves.items():
        if saved < 1:
            continue
        because, remedy = _words(name, traits, context, unknown)
        found.append(MarginPart(name, round(margin * saved / total), round(saved), because, remedy))
    return tuple(sorted(found, key=lambda one: -one.size_bytes))


def part_of_another_run(kind: str, size_bytes: int) -> MarginPart:
    """Return the part of a margin that comes from another run of the job with a higher peak.

    Args:
        kind: values, speed or growth.
        size_bytes: Size of the part.
    """
    return MarginPart(kind, size_bytes, size_bytes, *_OTHER_RUNS[kind])


def _words(name: str, traits: Mapping[str, str], context: Context, unknown: Sequence[str]) -> tuple[str, str]:
    """Return the cause of a part's width, and its remedy."""
    if name == "context":
        return context.provenance, _CONTEXT
    if name == "libraries":
        if not context.has_nccl:
            return "the contexts of the job's other processes are assumed, not measured", _ONCE
        return "NCCL's communicators and the contexts of other ranks are assumed, not measured", _LIBRARIES
    if name == "assumed":
        return f"not known exactly: {', '.join(unknown)[:200]}", _MEASURED
    remedy = next((text for trait, value, text in _OF_TRAITS if traits.get(trait) == value), _MEASURED)
    return "past errors on similar jobs", remedy
