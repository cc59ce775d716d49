"""Ctrl-C while a command is traced: the steps seen so far are the answer, and an error of the job is reported."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from vramcast.cli.signals import first_interrupt
from vramcast.core.errors import CannotEstimate, JobError, NothingAsked, TimeLimit, VramcastError, WorkerError
from vramcast.estimates.estimator import estimate_command
from vramcast.estimates.result import Estimate
from vramcast.tracer.format.trace import INTERRUPTED
from vramcast.tracer.nullgpu.client import NullGpuTracer

traces = [pytest.mark.integration, pytest.mark.torch, pytest.mark.usefixtures("needs_null_gpu")]

SLEEPS = """
import pathlib, sys, time, torch
if "asks" in sys.argv:
    kept = torch.empty(1 << 20, device="cuda")
pathlib.Path(sys.argv[1]).touch()
try:
    time.sleep(600)
except BaseException:
    if "raises" in sys.argv:
        raise ValueError("in the job's own handler")
    raise
"""


def stopped(folder: Path, *words: str) -> Estimate:
    """Stop a command once it sleeps, and return its estimate."""
    script, sleeps = folder / "script.py", folder / "sleeps"
    script.write_text(SLEEPS)
    with NullGpuTracer.stoppable() as stop:

        def once_it_sleeps() -> None:
            while not sleeps.exists():
                time.sleep(0.01)
            stop()

        threading.Thread(target=once_it_sleeps, daemon=True).start()
        return estimate_command([str(script), str(sleeps), *words], device="t4")


class TestTraced:
    pytestmark = traces

    def test_answers_with_steps_seen_so_far(self, tmp_path: Path) -> None:
        found = stopped(tmp_path, "asks")
        assert (found.course.ended, found.allocated) == (INTERRUPTED, 4 << 20)

    def test_reports_error_in_answer(self, tmp_path: Path) -> None:
        found = stopped(tmp_path, "asks", "raises")
        assert found.course.ended.startswith(f"{INTERRUPTED}; it raised ValueError: in the job's own handler (")

    def test_reports_error_without_answer(self, tmp_path: Path) -> None:
        with pytest.raises(JobError, match="ValueError: in the job's own handler"):
            stopped(tmp_path, "raises")

    def test_gives_no_answer_without_steps(self, tmp_path: Path) -> None:
        with pytest.raises(NothingAsked, match=INTERRUPTED):
            stopped(tmp_path)

    def test_stops_before_job_begins(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(SLEEPS)
        with NullGpuTracer.stoppable() as stop:
            stop()
            with pytest.raises(NothingAsked, match=INTERRUPTED):
                estimate_command([str(script), str(tmp_path / "sleeps")], device="t4")
        script.write_text("import torch\nkept = torch.empty(1 << 20, device='cuda')")
        assert estimate_command([str(script)], device="t4").course.ended == ""  # the next command is not interrupted


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (NothingAsked("nothing"), KeyboardInterrupt),
        (WorkerError("killed"), KeyboardInterrupt),
        (TimeLimit("late"), TimeLimit),
        (JobError("raised"), JobError),
        (CannotEstimate("for another reason"), CannotEstimate),
    ],
)
def test_reports_error_after_interrupt(error: VramcastError, raised: type[BaseException]) -> None:
    def interrupted() -> None:
        with first_interrupt(lambda: True):
            signal.raise_signal(signal.SIGINT)
            raise error

    with pytest.raises(raised):
        interrupted()
