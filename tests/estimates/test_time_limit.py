"""One time limit for all runs of a job; nothing is traced, and the clock is artificial."""

from __future__ import annotations

import time
from typing import Any

import pytest

from vramcast.core.deadline import Deadline
from vramcast.core.errors import TimeLimit, UsageError
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.format.trace import COURSE, INTERRUPTED, TIME_UP, Action, Category, Phase, Trace
from vramcast.tracer.observation import Observation
from vramcast.tracer.protocol.run_options import RunOptions

LIMIT_S = 100.0
JOB = Job(device("t4"), target="file.py:model")


class Clock:
    """A tracer that takes a given time for each run, records each limit, and stops a run that takes longer."""

    name = "clock"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *takes_s: float, is_full: bool, ended: str) -> None:
        self.now_s, self.given_s, self._takes_s, self._is_full, self._ended = 1000.0, [], list(takes_s), is_full, ended
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def observe(self, job: Job, options: RunOptions, *, timeout_s: float) -> Observation:
        self.given_s.append(timeout_s)
        takes_s = self._takes_s.pop(0)
        self.now_s += min(takes_s, timeout_s)
        ended = f"{TIME_UP} after {timeout_s:.0f} s" if takes_s > timeout_s else self._ended
        columns: dict[str, Any] = {
            "action": [Action.ALLOC], "size_bytes": [1 << 20], "block": [0], "step": [0], "phase": [Phase.FORWARD],
            "category": [Category.PARAMETER],
        }  # fmt: skip
        course = {"phases": [[0, "training"]], "counts": {"training": 1}, "not_reached": [], "ended": ended}
        ledger = (Entry(CallHandling.LARGEST, "__getitem__", 1),)
        peaks = {"peaks": {"allocated": 1 << 20, "reserved": 2 << 20}} if self._is_full else {}
        trace = Trace.build(columns, ledger=ledger, header={COURSE: course, **peaks})
        return Observation(trace, "null", "2.11.0", steps=1, out_of_memory="the card is full" if self._is_full else "")


def answered(
    monkeypatch: pytest.MonkeyPatch, *takes_s: float, is_full: bool = False, ended: str = ""
) -> tuple[Estimate, list[float]]:
    clock = Clock(monkeypatch, *takes_s, is_full=is_full, ended=ended)
    return Estimator("t4", clock, timeout_s=LIMIT_S).uncorrected(JOB), clock.given_s


def test_further_runs_share_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found, given_s = answered(monkeypatch, 70, 5)
    assert (given_s[0], found.unbounded_calls) == (LIMIT_S, ())
    assert given_s[1] <= 30


def test_names_stopped_further_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found, given_s = answered(monkeypatch, 70, 500)
    assert sum(given_s[1:]) <= 30
    assert found.unbounded_calls == (f"another run, with the largest values ({TIME_UP} after {given_s[1]:.0f} s)",)


def test_names_further_run_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found, given_s = answered(monkeypatch, LIMIT_S)
    assert given_s == [LIMIT_S]
    assert len(found.unbounded_calls) == 1
    assert "another run, with the largest values" in found.unbounded_calls[0]


def test_interrupted_job_has_no_further_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    found, given_s = answered(monkeypatch, 5, 5, ended=INTERRUPTED)
    assert len(given_s) == 1
    assert found.unbounded_calls == (f"another run, with the largest values ({INTERRUPTED})",)


def test_unlimited_run_shares_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeLimit, match="did not end within 100 s"):
        answered(monkeypatch, LIMIT_S, 1, is_full=True)


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_rejects_tiny_limit(limit_s: float) -> None:
    with pytest.raises(UsageError, match="must be above 0"):
        Deadline.after(limit_s)
