"""Run an unmodified training script on the null GPU, through --steps training steps and an evaluation, and estimate.

vramcast run --device rtx3090 --steps 3 -- train.py --epochs 10
"""

from __future__ import annotations

import argparse

from vramcast.cli import options as shared
from vramcast.cli import simulated
from vramcast.cli.signals import first_interrupt
from vramcast.tracer.nullgpu.client import NullGpuTracer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_training(parser, ["steps"])
    shared.add_course(parser)
    shared.add_output(parser)
    shared.add_files(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- script.py args", help="the script and its arguments")


def command_of(options: argparse.Namespace) -> list[str]:
    """Return the words of the command, which may stand behind a `--`."""
    return list(options.command[1:] if options.command[:1] == ["--"] else options.command)


def main(options: argparse.Namespace) -> int:
    """Run the verb; 0 when there is an estimate, 3 when the script asked the card for nothing."""
    questions = simulated.Questions(options)
    command = command_of(options)
    with shared.progress(f"running {' '.join(command[:1])}"), first_interrupt(NullGpuTracer.stop_command):
        estimate = shared.estimator_of(options).command(
            command,
            steps=options.steps,
            until=options.until,
            budget_s=options.budget_s,
            memory=options.memory,
            alloc_conf=options.alloc_conf,
        )
    shared.finish(options, estimate, questions)
    return 0
