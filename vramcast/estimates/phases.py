"""The phases of a training command (build, training, evaluation, checkpoint), with the peaks of each."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.core.brief import brief
from vramcast.core.errors import TraceFileError
from vramcast.simulator import curves
from vramcast.tracer.format.trace import COURSE, INTERRUPTED, TIME_UP, Trace


@brief
@dataclass(frozen=True, slots=True)
class TrainingPhase:
    """One phase of a training command.

    Attributes:
        name: build, training, evaluation or checkpoint.
        steps: Number of training steps, of forward passes in an evaluation, or of files written.
        reached: Whether the job reached the phase.
        allocated, reserved: Peaks of the phase in bytes; None if it was not reached.
    """

    name: str
    steps: int
    reached: bool
    allocated: int | None
    reserved: int | None


@brief
@dataclass(frozen=True, slots=True)
class TrainingShare:
    """The observed share of a training command.

    Attributes:
        steps: Number of observed training steps.
        of_steps: Number of training steps with those that sampled loops left out; None: unknown.
        evaluations: Number of observed evaluations.
        to_end: Whether the command was followed to its own end.
    """

    steps: int = 0
    of_steps: int | None = None
    evaluations: int = 0
    to_end: bool = False

    def __str__(self) -> str:
        """Return it as a phrase."""
        of = f" of {self.of_steps:,}" if self.of_steps is not None and self.of_steps > self.steps else ""
        words = f"saw {self.steps:,}{of} step{'s' * ((self.of_steps or self.steps) != 1)}{', to the last' * self.to_end}"
        return words + (f"; {self.evaluations} evaluation{'s' * (self.evaluations != 1)}" if self.evaluations else "")


@brief
@dataclass(frozen=True, slots=True)
class TrainingCourse:
    """The observed part of a training command.

    Attributes:
        phases: The phases in the order of the job.
        not_reached: The parts that were not observed, as text.
        ended: Reason why the command ended early; "" if it did not.
        frameworks: Frameworks other than PyTorch that the command imported.
        seen: The observed share.
    """

    phases: tuple[TrainingPhase, ...] = ()
    not_reached: tuple[str, ...] = ()
    ended: str = ""
    frameworks: tuple[str, ...] = ()
    seen: TrainingShare = TrainingShare()

    @property
    def is_whole(self) -> bool:
        """True if no part is known to be missing."""
        return not self.not_reached and not self.ended

    @property
    def is_interrupted(self) -> bool:
        """True if the user ended the command."""
        return self.ended.startswith(INTERRUPTED)

    @property
    def is_cut(self) -> bool:
        """True if a time limit or the user ended the command."""
        return self.is_interrupted or self.ended.startswith(TIME_UP)


_courses: weakref.WeakKeyDictionary[Trace, TrainingCourse] = weakref.WeakKeyDictionary()  # each card of an answer asks


def course_of(trace: Trace) -> TrainingCourse:
    """Return the course recorded in a trace's header; it is empty for a model.

    Raises:
        TraceFileError: The header is damaged.
    """
    said = trace.header.get(COURSE)
    if not said:
        return TrainingCourse()
    try:
        if trace not in _courses:
            _courses[trace] = _course(trace, said)
        return _courses[trace]
    except (TypeError, KeyError, ValueError, AttributeError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's course is damaged ({type(error).__name__}: {error}): record it again.") from None


def _course(trace: Trace, said: Mapping[str, Any]) -> TrainingCourse:
    spans = [(int(row), str(name)) for row, name in said["phases"]]
    ends = [*(row for row, _ in spans[1:]), len(trace)]
    live, held = curves.live_bytes(trace), trace.reserved_bytes()
    peaks: dict[str, tuple[int, int]] = {}
    for (row, name), end in zip(spans, ends, strict=True):
        before = peaks.get(name, (0, 0))
        inside = slice(max(row - 1, 0), end)  # blocks alive at the start of the phase belong to it
        peaks[name] = max(before[0], int(live[inside].max(initial=0))), max(before[1], int(held[inside].max(initial=0)))
    names = {name for _, name in spans}
    phases = tuple(
        TrainingPhase(name, int(n), name in names, *(peaks.get(name, (None, None)))) for name, n in said["counts"].items()
    )
    frameworks = tuple(map(str, said.get("frameworks", ())))  # an older trace has none
    seen = TrainingShare(**said["seen"]) if "seen" in said else TrainingShare()
    return TrainingCourse(phases, tuple(map(str, said["not_reached"])), str(said["ended"]), frameworks, seen)
