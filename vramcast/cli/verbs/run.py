"""Run an unmodified training command on the null GPU through --steps training steps and an evaluation, and estimate.

vramcast run --device rtx3090 --steps 3 -- train.py --epochs 10
vramcast run --device h100 -- torchrun --nproc_per_node=1 train.py --bf16
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from vramcast.cli import options as shared
from vramcast.cli import what_if_options
from vramcast.cli.signals import first_interrupt
from vramcast.cli.streams import answer
from vramcast.core.units import gib
from vramcast.estimates.result import Estimate
from vramcast.jobs.ranks import parse_ranks
from vramcast.tracer.nullgpu.client import NullGpuTracer

RUN_COMMANDS: Final = ("auto", "nullgpu")  # the tracers which can; the others run models
COMMAND_HELP: Final = (
    "what you type to train: train.py args, python -m package.train args, torchrun/accelerate launch/deepspeed train.py args; "
    "launchers are read, not run"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_training(parser, ["steps"])
    shared.add_course(parser)
    shared.add_ranks(parser)
    shared.add_output(parser, RUN_COMMANDS)
    shared.add_files(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help=COMMAND_HELP)


def command_of(options: argparse.Namespace) -> list[str]:
    """Return the words of the command, which may stand behind a `--`."""
    return list(options.command[1:] if options.command[:1] == ["--"] else options.command)


def main(options: argparse.Namespace) -> int:
    """Run the verb; 0 when there is an estimate, 3 when the script asked the card for nothing."""
    questions = what_if_options.Questions(options)
    command = command_of(options)
    estimate = estimate_of(options, command)  # no line of progress: it would run into what the script itself writes
    if not options.json and not estimate.point_fits():
        answer(f"does not fit: {needs(estimate)}")
    shared.finish(options, estimate, questions)
    return 0


def estimate_of(options: argparse.Namespace, command: Sequence[str]) -> Estimate:
    """Return the estimate of a command, as these options want it."""
    with first_interrupt(NullGpuTracer.stop_command):
        return shared.estimator_of(options).command(
            command, steps=options.steps, until=options.until, budget_s=options.budget_s, memory=options.memory,
            alloc_conf=options.alloc_conf, world_size=options.world_size, nproc_per_node=options.nproc_per_node,
            ranks=parse_ranks(options.ranks),
        )  # fmt: skip


def needs(estimate: Estimate) -> str:
    """Return what a job needs and what its card has, in words."""
    bound = "" if estimate.unbounded_calls else f", at most {gib(estimate.upper_bound)} at level {estimate.level:g}"
    return f"needs {gib(estimate.process)}{bound}; {estimate.job.device.name} has {gib(estimate.job.total_bytes)}"
