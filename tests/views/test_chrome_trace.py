"""The Chrome trace: events of the format's kinds, with the numbers of the trace."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from vramcast.simulator import curves
from vramcast.tracer.format.operators import Operator
from vramcast.tracer.format.trace import RANKS, Trace
from vramcast.views import chrome_trace, style

MIB = 2**20
# spec: Trace Event Format: required fields of each phase in addition to a name, a process and a thread
FIELDS = {"M": {"args"}, "X": {"ts", "dur"}, "C": {"ts", "args"}, "i": {"ts", "s"}}


def drawn(trace: Trace, **options: Any) -> list[dict[str, Any]]:
    """Return the events, after a check of each against the format."""
    page = json.loads(chrome_trace.draw(trace, **options))
    assert page["displayTimeUnit"] in ("ms", "ns")
    for event in page["traceEvents"]:
        assert event.keys() >= {"name", "pid", "tid", *FIELDS[event["ph"]]}
        assert all(isinstance(event[key], int) and event[key] >= 0 for key in ("pid", "tid", "ts", "dur") if key in event)
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    return page["traceEvents"]


def counters(events: list[dict[str, Any]], name: str) -> dict[int, dict[str, int]]:
    return {event["ts"]: event["args"] for event in events if (event["ph"], event["name"]) == ("C", name)}


def test_counters_follow_every_event(process_trace: Trace) -> None:
    events = drawn(process_trace, card_bytes=50 * MIB)
    rows = curves.sampled_rows(process_trace, 1000)
    allocated = counters(events, "allocated")
    assert list(allocated) == rows.tolist()
    assert allocated[5] == {**dict.fromkeys((look.name for look in style.LOOKS.values()), 0), **{
        "parameters": 4096, "activations": 10 * MIB, "workspaces": MIB
    }}  # fmt: skip
    assert [sum(parts.values()) for parts in allocated.values()] == curves.live_bytes(process_trace)[rows].tolist()
    assert [one["bytes"] for one in counters(events, "reserved").values()] == process_trace.reserved_bytes()[rows].tolist()
    assert [one["bytes"] for one in counters(events, "process").values()] == curves.process_bytes(process_trace)[rows].tolist()
    assert counters(events, "card") == {0: {"bytes": 50 * MIB}}


def test_slices_are_steps_and_phases(job_trace: Trace) -> None:
    slices = [event for event in drawn(job_trace) if event["ph"] == "X"]
    steps, phases = ([one for one in slices if one["tid"] == thread] for thread in (1, 2))
    assert [(one["name"], one["ts"], one["dur"]) for one in steps] == [("step 1", 2, 8), ("step 2", 10, 4)]
    assert [one["name"] for one in phases] == ["build", "forward", "backward", "optimizer"]
    assert all(one["ts"] + one["dur"] == after["ts"] for one, after in pairwise(phases))
    assert sum(one["dur"] for one in phases) == len(job_trace)


def test_marks_peaks(process_trace: Trace) -> None:
    marks = {event["name"]: event["ts"] for event in drawn(process_trace) if event["ph"] == "i"}
    assert marks == {"allocated peak 11.0 MiB": 5, "process peak 30.0 MiB": 13}


def test_ranks_are_processes(job_trace: Trace) -> None:
    trace = replace(job_trace, header={RANKS: {"world_size": 8, "fullest": 0, "peaks": []}})
    names = [one["args"]["name"] for one in drawn(trace, title="a job", beside=(7, job_trace)) if one["name"] == "process_name"]
    assert names == ["a job, rank 0 of 8, which reserves most", "a job, rank 7"]


@pytest.mark.parametrize("title", ["", "</script>\x1b[31m\ud800"])
def test_any_name_gives_valid_json(job_trace: Trace, title: str) -> None:
    trace = replace(job_trace, operators=[Operator.of(title, title)] * len(job_trace.operators))
    assert drawn(trace, title=title)
    assert chrome_trace.draw(trace, title=title).isprintable()


def test_thins_long_trace(job_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace, "_MAX_POINTS", 7)
    allocated = counters(drawn(job_trace), "allocated")
    assert len(allocated) <= 7
    assert curves.peak_of_live(job_trace).row in allocated
