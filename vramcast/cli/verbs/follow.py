"""Run a training command with its memory served from a plan.

    vramcast follow plan.json -- python train.py
    vramcast follow plan.json -- torchrun --nproc_per_node=2 train.py

`vramcast plan --on CARD --pool -o plan.json -- COMMAND` makes the plan, on any machine. The script is not changed. Requests
that the plan does not have are served by PyTorch's own allocator. The exit code is the command's; a plan for another script,
torch, card or number of ranks is refused with exit code 2.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from vramcast.cli import options as shared
from vramcast.cli.checked_job import COMMAND_HELP
from vramcast.core.errors import UsageError
from vramcast.core.files import sha256_of
from vramcast.core.location import import_root
from vramcast.plans.runtime import follower
from vramcast.plans.runtime.plan_file import PlanFile, PlannedJob

_BY_SIGNAL: Final = 128  # spec: POSIX shells add this to the number of the signal that ended a process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options; `command` holds the words after `--` (main.py)."""
    parser.add_argument("plan", metavar="PLAN.json", help="the plan of `vramcast plan --pool -o PLAN.json -- COMMAND`")
    parser.epilog = f"After all options: -- COMMAND: {COMMAND_HELP}"


def main(options: argparse.Namespace) -> int:
    """Run the verb; return the command's exit code."""
    plan = PlanFile.read(options.plan)
    if not options.command:
        raise UsageError("No command is given to follow the plan: write it after --, for example -- python train.py.")
    _check(plan.job, options.command)
    words = [*([sys.executable] if options.command[0].endswith(".py") else []), *options.command]
    folders = [str(Path(follower.__file__).parent / "startup"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "VRAMCAST_FOLLOW": os.pathsep.join([str(import_root()), os.path.abspath(options.plan)]),
    }
    try:
        code = subprocess.run(words, env=environment).returncode
    except OSError as error:
        raise UsageError(f"'{words[0]}' cannot be run ({error.strerror}): write the command as in a shell.") from None
    return code if code >= 0 else _BY_SIGNAL - code


def _check(planned: PlannedJob, words: list[str]) -> None:
    """Refuse a plan before the command starts, as far as its words show that it is for another job."""
    command = None
    with suppress(UsageError):  # a launcher that vramcast does not know: each process of the job checks
        command = shared.text_of({"command": words}).job(None).command
    if command is None:
        return
    is_script = not (command.is_module or command.is_code)
    digest = sha256_of(command.program) or None if is_script else None
    planned.require(PlannedJob(command.program, digest, world_size=command.world.size))
