"""A training command as the command line runs it: its job, its estimate, and what it needs in words."""

from __future__ import annotations

import argparse
from typing import Final

from vramcast.cli.signals import first_interrupt
from vramcast.core.units import gib
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.jobs.text import JobText
from vramcast.tracer.nullgpu.client import NullGpuTracer

RUN_COMMANDS: Final = ("auto", "nullgpu")  # the tracers which can; the others run models
COMMAND_HELP: Final = (
    "what you type to train: train.py args, python -m package.train args, torchrun/accelerate launch/deepspeed train.py args; "
    "launchers are read, not run"
)


def job_text(options: argparse.Namespace) -> JobText:
    """Return the job of the command, which may stand behind a `--`."""
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    return JobText.of({**vars(options), "command": words})


def estimate_of(estimator: Estimator, text: JobText) -> Estimate:
    """Return the estimate of a command, which Ctrl-C ends early."""
    with first_interrupt(NullGpuTracer.stop_command):
        return estimator.estimate_job(text.job(estimator.card))


def needs(estimate: Estimate) -> str:
    """Return what a job needs and what its card has, in words."""
    bound = "" if estimate.unbounded_calls else f", at most {gib(estimate.upper_bound)} at level {estimate.level:g}"
    return f"needs {gib(estimate.process)}{bound}; {estimate.job.device.name} has {gib(estimate.job.total_bytes)}"
