"""The phases of a command, from a trace's header."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.core.errors import TraceFileError
from vramcast.estimates.phases import course_of
from vramcast.tracer.format.trace import COURSE, Action, Trace

MIB = 2**20


def trace(said: Any) -> Trace:
    """Return a trace of three blocks of 1, 2 and 4 MiB, the last of which is freed."""
    actions = [Action.ALLOC, Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    sizes = [MIB, 2 * MIB, 4 * MIB, 4 * MIB, 4 * MIB]
    columns = {"action": actions, "size_bytes": sizes, "block": [0, 1, 2, 2, 2], "address": [1, 2, 3, 3, 3]}
    return Trace.build(columns, header={COURSE: said})


def test_each_phase_has_its_peaks() -> None:
    counts = {"build": 0, "training": 3, "evaluation": 1, "checkpoint": 0}
    spans = [[0, "build"], [1, "training"], [2, "evaluation"], [5, "training"]]
    course = course_of(trace({"phases": spans, "counts": counts, "not_reached": ["x"], "ended": ""}))
    assert [(phase.name, phase.steps, phase.reached, phase.allocated) for phase in course.phases] == [
        ("build", 0, True, MIB),
        ("training", 3, True, 3 * MIB),
        ("evaluation", 1, True, 7 * MIB),
        ("checkpoint", 0, False, None),
    ]
    assert (course.not_reached, course.is_whole) == (("x",), False)


def test_model_has_no_course() -> None:
    course = course_of(trace(None))
    assert (course.phases, course.is_whole) == ((), True)


@pytest.mark.parametrize("said", ["x", {"phases": 3}, {"phases": [["a", "b"]], "counts": {}, "not_reached": [], "ended": ""}])
def test_rejects_damaged_course(said: Any) -> None:
    with pytest.raises(TraceFileError, match="course is damaged"):
        course_of(trace(said))


def test_phase_counts_blocks_alive_at_its_start() -> None:
    # The evaluation begins with the free of a block of 4 MiB: until then, 7 MiB are alive in it.
    spans = [[0, "training"], [4, "evaluation"]]
    course = course_of(trace({"phases": spans, "counts": {"evaluation": 1}, "not_reached": [], "ended": ""}))
    assert [(phase.name, phase.allocated) for phase in course.phases] == [("evaluation", 7 * MIB)]
