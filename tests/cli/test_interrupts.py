"""Ctrl-C while a command is traced: what was seen so far is the answer, whenever it comes, and an error of the job is told."""

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
    """Stop a command once it sleeps."""
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

    def test_what_was_seen_so_far_is_the_answer(self, tmp_path: Path) -> None:
        found = stopped(tmp_path, "asks")
        assert (found.course.ended, found.allocated) == (INTERRUPTED, 4 << 20)

    def test_an_error_in_the_answer_is_told(self, tmp_path: Path) -> None:
        found = stopped(tmp_path, "asks", "raises")
        assert found.course.ended.startswith(f"{INTERRUPTED}; it raised ValueError: in the job's own handler (")

    def test_an_error_without_an_answer_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(JobError, match="ValueError: in the job's own handler"):
            stopped(tmp_path, "raises")

    def test_nothing_seen_is_no_answer(self, tmp_path: Path) -> None:
        with pytest.raises(NothingAsked, match=INTERRUPTED):
            stopped(tmp_path)

    def test_a_stop_before_the_job_begins_is_heard(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(SLEEPS)
        with NullGpuTracer.stoppable() as stop:
            stop()
            with pytest.raises(NothingAsked, match=INTERRUPTED):
                estimate_command([str(script), str(tmp_path / "sleeps")], device="t4")
        script.write_text("import torch\nkept = torch.empty(1 << 20, device='cuda')")
        assert estimate_command([str(script)], device="t4").course.ended == ""  # the next command runs as it likes


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
def test_an_error_after_an_interrupt_is_told_unless_it_is_the_interrupts_own(
    error: VramcastError, raised: type[BaseException]
) -> None:
    def interrupted() -> None:
        with first_interrupt(lambda: None):
            signal.raise_signal(signal.SIGINT)
            raise error

    with pytest.raises(raised):
        interrupted()
