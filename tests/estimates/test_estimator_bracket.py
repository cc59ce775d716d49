"""Second runs on a slow card, and their effect on the estimate; nothing is traced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vramcast.core.errors import TimeLimit
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.format.trace import COURSE, RANKS, Action, Category, Phase, Trace
from vramcast.tracer.observation import Observation, RecordedTracer
from vramcast.tracer.protocol.run_options import RunOptions

MIB = 1 << 20
JOB = Job(device("t4"), target="file.py:model")


def seen(size_mib: int, *, decides: bool, ranks: int) -> Observation:
    """Return a trace of one block, for a job with `world_size` ranks."""
    columns: dict[str, Any] = {
        "action": [Action.ALLOC], "size_bytes": [size_mib * MIB], "block": [0], "step": [0], "phase": [Phase.FORWARD],
        "category": [Category.PARAMETER],
    }  # fmt: skip
    ledger = (Entry(CallHandling.SPEED, "cudaEventQuery", 1),) if decides else ()
    header = {RANKS: {"world_size": ranks, "peaks": [[0, 1, 1]]}} if ranks > 1 else {}
    return Observation(Trace.build(columns, ledger=ledger, header=header), "null", "2.11.0", steps=1)


def answered(
    bracket: bool | None, *, decides: bool = True, ranks: int = 8, slow_mib: int = 4000, fails: bool = False, ended: str = ""
) -> Estimate:
    """Return the estimate of a job of 2,000 MiB on a fast card."""

    def observe(job: Job, options: RunOptions) -> Observation:
        if options.slow and fails:
            raise TimeLimit("The job did not end within 10 s")
        found = seen(slow_mib if options.slow else 2000, decides=decides, ranks=ranks)
        course = {
            "phases": [[0, "training"]],
            "counts": {"training": 1},
            "not_reached": [],
            "ended": ended if options.slow else "",
        }
        return replace(found, trace=replace(found.trace, header={**found.trace.header, COURSE: course}))

    return Estimator("t4", RecordedTracer(observe), bracket=bracket).estimate_job(JOB)


@pytest.mark.parametrize(
    ("bracket", "decides", "ranks", "runs"),
    [
        (None, True, 8, True), (None, True, 1, False), (None, False, 8, False), (True, True, 1, True), (False, True, 8, False),
        (True, False, 8, False),
    ],
)  # fmt: skip
def test_runs_twice_if_speed_decides(bracket: bool | None, decides: bool, ranks: int, runs: bool) -> None:
    found = answered(bracket, decides=decides, ranks=ranks)
    assert (found.slow_card_peaks is not None) == runs
    assert any("--bracket" in text for text in found.warnings) == (decides and not runs)
    assert found.reserved == 2000 * MIB


def test_bound_covers_slow_card() -> None:
    alone, both, equal = answered(False), answered(True), answered(True, slow_mib=2000)
    assert (both.process, both.quantile(0.5)) == (alone.process, alone.quantile(0.5))
    assert both.upper_bound - alone.upper_bound > 2000 * MIB
    assert equal.upper_bound == alone.upper_bound
    assert both.to_dict()["streams"] == {
        "speed_decides": True,
        "fast": {"allocated": 2000 * MIB, "reserved": 2000 * MIB},
        "slow": {"allocated": 4000 * MIB, "reserved": 4000 * MIB},
    }


def test_ends_are_equal_if_speed_is_irrelevant() -> None:
    said = answered(None, decides=False).to_dict()["streams"]
    assert not said["speed_decides"]
    assert said["slow"] == said["fast"]


@pytest.mark.parametrize("way", [{"fails": True}, {"ended": "it was stopped after 10 s"}])
def test_warns_if_slow_run_stops_early(way: dict[str, Any]) -> None:
    found = answered(True, **way)
    assert found.slow_card_peaks is None
    assert any("stopped earlier" in text for text in found.warnings)
