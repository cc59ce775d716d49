"""Explain why a job ran out of memory: the cause, what held the card, and the changes that would have helped.

    vramcast explain slurm-4711.out
    torchrun train.py 2>&1 | vramcast explain -
    vramcast explain --on rtx4090 snapshot.pickle
    vramcast explain --on rtx4090 -- python train.py

FILE has an error, in a log or alone, a memory snapshot, or a memory_summary(). Exit code 0: the cause is certain, 4: it is not.
"""

from __future__ import annotations

import argparse
import sys

from vramcast.cli import options as shared
from vramcast.cli.checked_job import COMMAND_HELP, RUN_COMMANDS, estimate_of
from vramcast.cli.streams import answer_as
from vramcast.cli.terminal import progress
from vramcast.core.errors import DoesNotFit, UsageError
from vramcast.explanations.explain import explain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options; `command` holds the words after `--` (main.py)."""
    parser.add_argument("file", metavar="FILE", nargs="?", help="text, log, snapshot or summary; -: standard input")
    shared.add_fields(parser, "steps")
    shared.add_course(parser)
    shared.add_fields(parser, *shared.RANKS)
    shared.add_output(parser, RUN_COMMANDS)
    parser.set_defaults(command=None)
    parser.epilog = f"After all options: -- COMMAND: {COMMAND_HELP}"


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    if (options.file is None) == (not options.command):
        raise UsageError("Give one input: a FILE, - for standard input, or a command after --.")
    source = sys.stdin.buffer.read() if options.file == "-" else options.file
    if options.command:
        shared.require_card(vars(options))
        try:
            source = estimate_of(shared.estimator_of(vars(options)), shared.text_of(vars(options)))
        except DoesNotFit as error:  # the job's own limit, or a request that no card can serve
            source = error
    with progress("explaining"):
        found = explain(source, device=options.device, memory=options.memory)
    answer_as(options.json, found.to_dict(), lambda: str(found))
    return found.exit_code
