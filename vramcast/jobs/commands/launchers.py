"""The known launchers, each described by its options (launcher_options.toml), so that none has to be installed.

Tests compare the tables with the launchers' own parsers where they are installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from vramcast.jobs.commands.accelerate import ACCELERATE
from vramcast.jobs.commands.deepspeed import DEEPSPEED
from vramcast.jobs.commands.launcher import OPTIONS, Launcher, LauncherProcesses, first_rank, whole_number
from vramcast.jobs.ranks import World

_ALL = frozenset({"", "auto", "gpu"})  # spec: torchrun's words for one process per card; a job here has one card

# ------------------------------------------------------------------------------------------------ torchrun


def _of_torchrun(options: dict[str, Any], words: tuple[str, ...], environment: Mapping[str, str]) -> LauncherProcesses:
    def option(name: str, default: str) -> str:
        return str(options.get(name, environment.get(f"PET_{name.upper()}", default)))  # spec: torch's argparse_util.env

    nnodes, per_node = option("nnodes", "1"), option("nproc_per_node", "1")
    nodes = whole_number("--nnodes", nnodes.rpartition(":")[2])
    processes = 1 if per_node in _ALL else whole_number("--nproc_per_node", per_node)
    world = World(nodes * processes, processes)
    variables = first_rank(
        world, restarts=option("max_restarts", "0"), run_id=option("rdzv_id", "none"), role=option("role", "default")
    )
    return LauncherProcesses(words, "module" in options, "no_python" in options, variables, world)


def _of_torch_launch(options: dict[str, Any], words: tuple[str, ...], environment: Mapping[str, str]) -> LauncherProcesses:
    launched = _of_torchrun(options, words, environment)
    rest = launched.words if "use_env" in options else (words[0], "--local-rank=0", *words[1:])
    return replace(launched, words=rest)


# ------------------------------------------------------------------------------------------------ table
_VALUED, _FLAGS = OPTIONS["torchrun"]["valued"], OPTIONS["torchrun"]["flags"]
TORCHRUN: Final = Launcher("torchrun", _VALUED, _FLAGS, _of_torchrun)
TORCH_LAUNCH: Final = Launcher("python -m torch.distributed.launch", _VALUED, [*_FLAGS, "use_env"], _of_torch_launch)

# By the words before their options.
BY_WORDS: Final[dict[tuple[str, ...], Launcher]] = {
    ("torchrun",): TORCHRUN,
    ("deepspeed",): DEEPSPEED,
    ("accelerate", "launch"): ACCELERATE,
    ("accelerate-launch",): ACCELERATE,
}
BY_MODULE: Final[dict[tuple[str, ...], Launcher]] = {
    ("torch.distributed.run",): TORCHRUN,
    ("torch.distributed.launch",): TORCH_LAUNCH,
    ("accelerate.commands.launch",): ACCELERATE,
    ("accelerate.commands.accelerate_cli", "launch"): ACCELERATE,
    ("deepspeed.launcher.runner",): DEEPSPEED,
}


def find(words: Sequence[str], table: Mapping[tuple[str, ...], Launcher]) -> tuple[Launcher, Sequence[str]] | None:
    """Return the launcher at the beginning of a command, and the words after its name."""
    if not words:
        return None
    named = (os.path.basename(words[0]) if table is BY_WORDS else words[0], *words[1:2])
    for begin, launcher in table.items():
        if named[: len(begin)] == begin:
            return launcher, words[len(begin) :]
    return None
