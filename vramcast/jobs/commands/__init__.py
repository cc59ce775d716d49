"""The job of a command as people type it: which program it runs, with which import path, in which environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from vramcast.core.package import checkout_root
from vramcast.hardware.cards import checked_card_bytes
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.jobs.commands.launcher import first_rank
from vramcast.jobs.commands.reading import read
from vramcast.jobs.job import Command, Job, Training, Until, current_folder
from vramcast.jobs.ranks import Rank, Ranks, World

BUDGET_S: Final = 30.0  # arbitrary: most scripts evaluate their first epoch in less, once it is cut short


def job_of_command(
    command: Sequence[str], device: Device, *, steps: int = 3, until: Until = "evaluation",
    budget_s: float | None = None, memory: int | str | None = None, alloc_conf: str | None = None,
    stack: Stack | None = None, world_size: int | None = None, nproc_per_node: int | None = None, ranks: Ranks = "auto",
) -> Job:  # fmt: skip
    """Return the job of a command: `train.py args`, `python -m package.train`, `torchrun train.py`, ...

    Args:
        command: Its words.
        device: The card.
        steps: Training steps which are wanted.
        until: How far it is followed, see `Command`.
        budget_s: Seconds which may pass after the last wanted step; None: `BUDGET_S`, but with until="end" as many as it takes.
        memory: The card's size, if not the device's own.
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF; None: what script and environment say.
        stack: Software of the card's machine.
        world_size: Ranks; None: as many as the command's launcher, or WORLD_SIZE, says.
        nproc_per_node: Of them on each machine; None: likewise, else as many as divide them, at most 8.
        ranks: Which are traced.
    Raises:
        UsageError: there is no Python program behind it, or it does not exist; a number of ranks is wrong.
    """
    program = _with_world(read(command, os.environ), world_size, nproc_per_node)
    if budget_s is None and until != "end":
        budget_s = BUDGET_S
    return Job(
        device=device,
        command=replace(program, until=until, budget_s=budget_s, ranks=ranks),
        training=Training(steps=steps),
        alloc_conf=alloc_conf,
        stack=stack,
        memory_bytes=checked_card_bytes(memory) if memory is not None else None,
        search_path=_search_path(program),
        working_folder=current_folder(),
    )


def _with_world(command: Command, world_size: int | None, nproc_per_node: int | None) -> Command:
    """Return a command with its ranks: those which are asked for, else its launcher's, else the environment's."""
    environment = {**os.environ, **dict(command.environment)}
    said = environment.get("WORLD_SIZE", "")
    told = command.world.size if command.world.size > 1 else int(said) if said.isdecimal() else 1
    size = world_size if world_size is not None else told if told > 1 else nproc_per_node or 1
    per_node = nproc_per_node or (command.world.per_node if size == command.world.size else 0)
    world = World(size, per_node)
    if size == 1 or world == command.world:
        return replace(command, world=world)
    variables = Rank(0, world).told({**first_rank(world), **dict(command.environment)})
    return replace(command, world=world, environment=tuple(variables.items()))


def _search_path(command: Command) -> tuple[str, ...]:
    """Return the import path as the interpreter has it before it puts the program's folder first.

    Without the folder in which `python -m vramcast` was started: in a checkout that folder has subfolders which would pass for
    packages, `datasets` for Hugging Face's.
    """
    told = [entry for entry in dict(command.environment).get("PYTHONPATH", "").split(os.pathsep) if entry]
    named = [*told, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    ours = {"", current_folder(), str(checkout_root())}
    path = (*map(os.path.abspath, told), *(entry for entry in sys.path if entry not in ours or entry in named))
    return tuple(dict.fromkeys(path))
