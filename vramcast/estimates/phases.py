"""The phases of a training command, with the peaks of each: building, training, evaluating, writing a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.core.errors import TraceFileError
from vramcast.simulator import curves
from vramcast.tracer.format.trace import COURSE, INTERRUPTED, TIME_UP, Trace


@dataclass(frozen=True, slots=True)
class Phase:
    """One of them.

    Attributes:
        name: build, training, evaluation or checkpoint.
        steps: Training steps; forward passes of an evaluation; files which were written.
        reached: Whether the job came to it.
        allocated, reserved: Its peaks in bytes; None where it was not reached.
    """

    name: str
    steps: int
    reached: bool
    allocated: int | None
    reserved: int | None


@dataclass(frozen=True, slots=True)
class Course:
    """How far a training command was followed.

    Attributes:
        phases: In the order in which a job meets them.
        not_reached: What was not seen, in words.
        ended: Why the command ended before its time; "": it did not.
        frameworks: Others than PyTorch which the command has imported.
    """

    phases: tuple[Phase, ...] = ()
    not_reached: tuple[str, ...] = ()
    ended: str = ""
    frameworks: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is known to be missing."""
        return not self.not_reached and not self.ended

    @property
    def is_interrupted(self) -> bool:
        """Whether its user ended the command."""
        return self.ended.startswith(INTERRUPTED)

    @property
    def is_cut(self) -> bool:
        """Whether a limit of time, or its user, ended the command."""
        return self.is_interrupted or self.ended.startswith(TIME_UP)


def course_of(trace: Trace) -> Course:
    """Return the course which a trace's header tells; of a model's job there is none.

    Raises:
        TraceFileError: the header is damaged.
    """
    said = trace.header.get(COURSE)
    if not said:
        return Course()
    try:
        return _course(trace, said)
    except (TypeError, KeyError, ValueError, AttributeError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's course is damaged ({type(error).__name__}: {error}): record it again.") from None


def _course(trace: Trace, said: Mapping[str, Any]) -> Course:
    spans = [(int(row), str(name)) for row, name in said["phases"]]
    ends = [*(row for row, _ in spans[1:]), len(trace)]
    live, held = curves.live_bytes(trace), trace.reserved_bytes()
    peaks: dict[str, tuple[int, int]] = {}
    for (row, name), end in zip(spans, ends, strict=True):
        before = peaks.get(name, (0, 0))
        inside = slice(max(row - 1, 0), end)  # what lives when the phase begins belongs to it
        peaks[name] = max(before[0], int(live[inside].max(initial=0))), max(before[1], int(held[inside].max(initial=0)))
    names = {name for _, name in spans}
    phases = tuple(Phase(name, int(n), name in names, *(peaks.get(name, (None, None)))) for name, n in said["counts"].items())
    frameworks = tuple(map(str, said.get("frameworks", ())))  # a trace of before has none
    return Course(phases, tuple(map(str, said["not_reached"])), str(said["ended"]), frameworks)
