"""Further runs of a job with other values, and their effect on the estimate; nothing is traced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from vramcast.core.errors import JobError, TimeLimit
from vramcast.core.units import MIB
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.estimates.runs import job_runs
from vramcast.estimates.runs.other_values import wanted
from vramcast.hardware.cards import device
from vramcast.jobs.job import Command, Job, Training
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.format.trace import COURSE, SERVING, Action, Category, Phase, Trace
from vramcast.tracer.observation import Observation, RecordedTracer
from vramcast.tracer.protocol.run_options import RunOptions

JOB = Job(device("t4"), command=Command(("train.py",)), training=Training(steps=3))
NUMBER = "a number read from the card (train.py:7)"


def seen(size_mib: int, *kinds: CallHandling, steps: int = 3, ended: str = "") -> Observation:
    """Return a trace of one block, for a command of `steps` steps."""
    columns: dict[str, Any] = {
        "action": [Action.ALLOC], "size_bytes": [size_mib * MIB], "block": [0], "step": [0], "phase": [Phase.FORWARD],
        "category": [Category.PARAMETER],
    }  # fmt: skip
    course = {"phases": [[0, "training"]], "counts": {"training": steps}, "not_reached": [], "ended": ended}
    ledger = tuple(Entry(kind, NUMBER, 1) for kind in kinds)
    return Observation(Trace.build(columns, ledger=ledger, header={COURSE: course}), "null", "2.11.0", steps=steps)


def answered(first: Observation, others: Mapping[str, Observation | Exception]) -> tuple[Estimate, list[str]]:
    """Return the estimate of a job with these results of its runs, and the runs made."""
    runs = []

    def observe(job: Job, options: RunOptions) -> Observation:
        runs.append(options.answers)
        found = first if options.answers == "drawn" else others[options.answers]
        if isinstance(found, Exception):
            raise found
        return found

    return Estimator("t4", RecordedTracer(observe)).estimate_job(JOB), runs


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), []), ((CallHandling.READ, CallHandling.DRAWN), []),
        ((CallHandling.LARGEST,), ["largest"]), ((CallHandling.BRANCH,), ["otherwise"]),
        ((CallHandling.SMALLEST,), ["largest", "smallest"]), ((CallHandling.UNFOLLOWED,), ["largest", "smallest"]),
        ((CallHandling.DECIDED,), ["otherwise"]), ((CallHandling.LARGEST, CallHandling.DECIDED), ["largest", "otherwise"]),
        ((CallHandling.OPEN,), []),
    ],
)  # fmt: skip
def test_selects_further_runs(kinds: tuple[CallHandling, ...], expected: list[str]) -> None:
    assert wanted([Entry(kind, NUMBER, 1) for kind in kinds]) == expected
    _, runs = answered(seen(100, *kinds), dict.fromkeys(("largest", "smallest", "otherwise"), seen(100)))
    assert runs == ["drawn", *expected]


def test_engine_that_divided_its_card_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_runs, "watched", None)  # a growing loop would be watched in a second run
    first = seen(100, CallHandling.LARGEST)
    assert first.trace is not None
    header = {**first.trace.header, SERVING: {"engine": "vllm", "starts": True}}
    _, runs = answered(replace(first, trace=replace(first.trace, header=header)), {})
    assert runs == ["drawn"]


def test_bound_covers_other_answers() -> None:
    found, _ = answered(seen(100, CallHandling.DECIDED), {"otherwise": seen(4000)})
    assert (found.reserved, found.max_shape_reserved_bytes, found.unbounded_calls) == (100 * MIB, 4000 * MIB, ())
    assert found.upper_bound > 4000 * MIB
    assert found.traits["values"] == "drawn"
    assert any(NUMBER in text for text in found.warnings)


def test_irrelevant_number_changes_nothing() -> None:
    usual, _ = answered(seen(100), {})
    for kind in (CallHandling.DECIDED, CallHandling.SMALLEST, CallHandling.UNFOLLOWED):
        found, _ = answered(seen(100, kind), dict.fromkeys(("largest", "smallest", "otherwise"), seen(100)))
        assert (found.upper_bound, found.max_shape_reserved_bytes, found.traits) == (usual.upper_bound, None, usual.traits)
        assert (found.unbounded_calls, found.warnings) == ((), usual.warnings)


def test_unfollowed_number_has_no_bound() -> None:
    found, _ = answered(seen(100, CallHandling.UNFOLLOWED), {"largest": seen(101), "smallest": seen(50)})
    assert found.unbounded_calls == (NUMBER,)
    assert not found.fits()


@pytest.mark.parametrize(
    ("kind", "other", "is_open"),
    [
        (CallHandling.DECIDED, JobError("The job raised ValueError: diverged"), False),  # that answer ends the job on a GPU too
        (CallHandling.DECIDED, TimeLimit("The job did not end within 10 s"), True),
        (CallHandling.DECIDED, seen(100, ended="its time was up after 10 s"), True),
        (CallHandling.DECIDED, seen(100, ended="it raised ValueError: diverged"), False),
        (CallHandling.UNFOLLOWED, JobError("The job raised IndexError"), False),
        (CallHandling.SMALLEST, JobError("The job raised IndexError"), True),  # its largest was not observed
    ],
)
def test_failed_run_leaves_no_bound(kind: CallHandling, other: Observation | Exception, is_open: bool) -> None:
    others = {**dict.fromkeys(("smallest", "otherwise"), seen(100)), "largest": other, "otherwise": other}
    found, _ = answered(seen(100, kind), others)
    assert bool(found.unbounded_calls) == is_open


@pytest.mark.parametrize(
    ("steps", "other_steps", "is_open"), [(1, 1, False), (1, 2, True), (1, 3, False), (3, 1, False), (2, 1, True)]
)
def test_unknown_step_count_has_no_bound(steps: int, other_steps: int, is_open: bool) -> None:
    found, _ = answered(seen(100, CallHandling.DECIDED, steps=steps), {"otherwise": seen(100, steps=other_steps)})
    assert bool(found.unbounded_calls) == is_open
