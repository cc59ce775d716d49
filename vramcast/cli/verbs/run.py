"""Run an unmodified training command on the null GPU through --steps training steps and an evaluation, and estimate.

vramcast run --device rtx3090 --steps 3 -- train.py --epochs 10
vramcast run --device h100 -- torchrun --nproc_per_node=1 train.py --bf16
"""

from __future__ import annotations

import argparse
from typing import Final

from vramcast.cli import options as shared
from vramcast.cli import what_if_options
from vramcast.cli.signals import first_interrupt
from vramcast.cli.streams import answer
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_fields(parser, "steps")
    shared.add_course(parser)
    shared.add_fields(parser, *shared.RANKS)
    shared.add_output(parser, RUN_COMMANDS)
    shared.add_files(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help=COMMAND_HELP)


def job_text(options: argparse.Namespace) -> JobText:
    """Return the job of the command, which may stand behind a `--`."""
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    return JobText.of({**vars(options), "command": words})


def main(options: argparse.Namespace) -> int:
    """Run the verb; 0 when there is an estimate, 3 when the script asked the card for nothing."""
    questions = what_if_options.Questions(options)
    estimator = shared.estimator_of(vars(options))
    estimate = estimate_of(estimator, job_text(options))  # no line of progress: it would run into what the script itself writes
    if not options.json and not estimate.point_fits():
        answer(f"does not fit: {needs(estimate)}")
    shared.finish(options, estimate, questions)
    return 0


def estimate_of(estimator: Estimator, text: JobText) -> Estimate:
    """Return the estimate of a command, which Ctrl-C ends early."""
    with first_interrupt(NullGpuTracer.stop_command):
        return estimator.of(text.job(estimator.card))


def needs(estimate: Estimate) -> str:
    """Return what a job needs and what its card has, in words."""
    bound = "" if estimate.unbounded_calls else f", at most {gib(estimate.upper_bound)} at level {estimate.level:g}"
    return f"needs {gib(estimate.process)}{bound}; {estimate.job.device.name} has {gib(estimate.job.total_bytes)}"
