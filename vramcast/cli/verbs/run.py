"""Run an unmodified training command on the null GPU for --steps training steps and an evaluation, and estimate its memory.

vramcast run --on rtx3090 -- python train.py --epochs 10
vramcast run --on h100 -- torchrun --nproc_per_node=1 train.py --bf16
"""

from __future__ import annotations

import argparse

from vramcast.cli import options as shared
from vramcast.cli import what_if_options
from vramcast.cli.checked_job import COMMAND_HELP, RUN_COMMANDS, estimate_of, job_text
from vramcast.cli.help_text import ANSWER, group


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_fields(parser, "steps")
    shared.add_course(parser)
    shared.add_fields(parser, *shared.RANKS)
    shared.add_output(parser, RUN_COMMANDS)
    shared.add_files(parser)
    shared.add_details(parser)
    group(parser, ANSWER).add_argument(
        "--advise",
        action="store_true",
        help="also trace changes that make the command fit, applied while it runs, and say how to make them",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, type=str, metavar="-- COMMAND", help=COMMAND_HELP)


def main(options: argparse.Namespace) -> int:
    """Run the verb; see `shared.exit_code`."""
    questions = what_if_options.Questions(options)
    estimator = shared.estimator_of(vars(options))
    text = job_text(options)
    estimate = estimate_of(estimator, text)
    shared.finish_advised(options, estimate, questions)
    return shared.exit_code(estimate)
