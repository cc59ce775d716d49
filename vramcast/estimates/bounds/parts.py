"""The parts of a bound's margin: what a context adds, what each part owes, and what would make it smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from vramcast.core.units import gib
from vramcast.hardware.context import Context
from vramcast.learner import sum_quantile
from vramcast.learner.sum_quantile import Array

# How a trait which makes a class wide can be changed, by trait and value; the first that holds is shown.
_OF_TRAITS: Final[tuple[tuple[str, str, str], ...]] = (
    ("values", "drawn", "shapes hang on values which nobody knows: measure this job once on the card"),
    ("batches", "vary", "pad all batches to one length"),
    ("torch", "other", "trace it with the torch of its stack (pip install torch==VERSION here)"),
    ("plans", "other", "ask the cuDNN of its stack (vramcast doctor --get-cudnn VERSION), where it is 9.12 or newer"),
    ("speed", "decides", "the card's speed decides when blocks of several streams come back: --bracket gives both ends"),
)
_ONCE: Final = "measure this job once on the card"
# Why another run of the job reserves more, and what to do about it.
_OTHER_RUNS: Final = {
    "values": ("the run with the largest shapes reserves more", _ONCE),
    "speed": ("the run on an infinitely slow card reserves more", _ONCE),
    "growth": ("the whole evaluation keeps more", "move what it keeps to the host"),
}
_MEASURED: Final = "measure jobs like it on the card and calibrate (vramcast measure; vramcast calibrate)"
_CONTEXT: Final = "measure the context once on the card (vramcast doctor --measure-context)"
_LIBRARIES: Final = "measure one job of as many ranks on the cluster (vramcast measure)"


@dataclass(frozen=True, slots=True)
class MarginPart:
    """One part of a margin.

    Attributes:
        part: allocator, context, libraries, assumed; process where allocator and context were measured together.
        size_bytes: What of the margin it owes; the parts sum to the margin.
        saves_bytes: By how much the bound would be lower if this part were known.
        because: What makes it wide.
        remedy: What would make it smaller.
    """

    part: str
    size_bytes: int
    saves_bytes: int
    because: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.because}; {self.remedy}: up to -{gib(self.saves_bytes)}"


def above(context: Context) -> dict[str, Array]:
    """Return by part of it how much more a process may take beside than the table's point, bytes at `joined.LEVELS`."""
    by_level = [context.parts_above(level) for level in sum_quantile.LEVELS.tolist()]
    return {name: np.array([parts[name] for parts in by_level], np.float64) for name in by_level[0]}


def explained(
    parts: Mapping[str, Array], level: float, *, group: str, traits: Mapping[str, str], context: Context, unknown: Sequence[str]
) -> tuple[MarginPart, ...]:
    """Return what each part owes, largest first; those which owe nothing are left out.

    The margin is shared in proportion to what each part alone would save.

    Args:
        parts: By name, bytes above the point at `joined.LEVELS`.
        level: Of the bound.
        group: By whose runs the allocator's part is calibrated.
        traits: The job's class.
        context: With its source.
        unknown: The calls which nobody answered.
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
        because, remedy = _words(name, group, traits, context, unknown)
        found.append(MarginPart(name, round(margin * saved / total), round(saved), because, remedy))
    return tuple(sorted(found, key=lambda one: -one.size_bytes))


def part_of_another_run(kind: str, size_bytes: int) -> MarginPart:
    """Return what a bound owes to another run of the job, whose peak lies above it.

    Args:
        kind: values, speed or growth.
        size_bytes: How much that is.
    """
    return MarginPart(kind, size_bytes, size_bytes, *_OTHER_RUNS[kind])


def _words(name: str, group: str, traits: Mapping[str, str], context: Context, unknown: Sequence[str]) -> tuple[str, str]:
    """Return why a part is as wide as it is, and what to do about it."""
    if name == "context":
        return context.provenance, _CONTEXT
    if name == "libraries":
        return "NCCL's communicators and other ranks' contexts were not measured here", _LIBRARIES
    if name == "assumed":
        return f"not answered by NVIDIA's own rules: {', '.join(unknown)[:200]}", _MEASURED
    remedy = next((text for trait, value, text in _OF_TRAITS if traits.get(trait) == value), _MEASURED)
    return f"by how much jobs like it were missed: {group}", remedy
