"""Check whether a job fits on a card: exit code 0 fits, 1 does not fit, 4 uncertain.

    vramcast check torchvision:resnet50 --batch-size 64 --on rtx4060
    vramcast check --on rtx4060 -- train.py --epochs 10
    vramcast check       # the jobs in pyproject.toml (docs/ci-gate.md)
    vramcast check --against origin/main --markdown comment.md

Without TARGET or COMMAND, the exit code is that of the worst job; from worst to best:
2, 1, 3, 4, 0.
"""

from __future__ import annotations

import argparse

from vramcast.cli import checked_job, what_if_options
from vramcast.cli import options as shared
from vramcast.cli.checked_job import CheckedJob
from vramcast.cli.project import repository_check
from vramcast.cli.streams import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options; `command` holds the words after `--` (main.py)."""
    checked_job.add_arguments(parser)
    shared.add_files(parser)
    shared.add_details(parser)
    repository_check.add_arguments(parser)
    parser.epilog = f"Instead of TARGET, after all options: -- COMMAND: {checked_job.COMMAND_HELP}"


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    questions = what_if_options.Questions(options)
    if options.target is None and not options.command:
        return repository_check.main(options)
    repository_check.refuse(options)
    job = CheckedJob.of({**vars(options), "command": options.command or None})
    estimate = job.estimate()
    shared.finish(options, estimate, questions)
    if options.json:
        say(str(estimate.verdict))
    return estimate.verdict.exit_code
