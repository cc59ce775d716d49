"""Second runs that watch a growing loop: the run used for the answer, and the answer if time runs out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.estimates.test_growth import MIB, History, keeps, of_steps
from vramcast.core.errors import WorkerError
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.observation import Observation, RecordedTracer
from vramcast.tracer.protocol.run_options import RunOptions


def settles(history: History, step: int) -> None:
    """Keep only a block of the third step."""
    if step == 2:
        history.ask(MIB, "aten::mean")


def estimate(first: Trace, watched: Trace | Exception) -> tuple[Estimate, list[RunOptions]]:
    """Return the estimate of a job with one trace, and another one while a loop is watched, and the options of its runs."""
    runs: list[RunOptions] = []

    def observe(job: Job, options: RunOptions) -> Observation:
        runs.append(options)
        answer = first if options.watch is None else watched
        if isinstance(answer, Exception):
            raise answer
        return Observation(answer, "recorded", steps=3)

    job = Job(device("rtx4060"), target="torchvision:resnet18", batch=TensorSpec((1, 3, 32, 32)))
    return Estimator(tracer=RecordedTracer(observe)).uncorrected(job), runs


def test_settled_job_runs_once() -> None:
    found, runs = estimate(of_steps(lambda history, step: None, 3).trace(), of_steps(keeps).trace())
    assert (found.growth, len(runs)) == (None, 1)


def test_growth_keeps_peaks_of_first_run() -> None:
    first = of_steps(keeps, 3).trace()
    found, runs = estimate(first, of_steps(keeps, 128).trace())
    assert found.growth is not None
    assert (found.growth.bytes_per_step, found.growth.steps_seen, found.growth.is_judged) == (MIB, 128, True)
    assert found.allocated == 21 * MIB
    assert [options.limited for options in runs] == [True, False]


def test_settled_loop_changes_nothing() -> None:
    first = of_steps(settles, 3).trace()
    found, runs = estimate(first, of_steps(settles, 128).trace())
    assert (found.growth, len(runs), found.verdict.value) == (None, 2, "fits")


@pytest.mark.parametrize("watched", [WorkerError("killed"), of_steps(keeps, 9).trace()])
def test_too_few_steps_are_uncertain(watched: Any) -> None:
    found, _ = estimate(of_steps(keeps, 3).trace(), watched)
    assert found.growth is not None
    assert (found.growth.bytes_per_step, found.growth.is_judged) == (MIB, False)
    assert found.verdict.value == "uncertain"
    assert "too few to tell whether the growth stops" in found.verdict.reason


def test_ended_loop_has_known_length() -> None:
    found, _ = estimate(of_steps(keeps, 3).trace(), of_steps(keeps, 20).trace(is_open=False))
    assert found.growth is not None
    assert (found.growth.steps_known, found.growth.is_judged) == (20, True)
