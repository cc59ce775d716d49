"""The job of a command as people type it: which script it runs, with which import path."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import vramcast
from vramcast.devices import Device, checked_card_bytes
from vramcast.errors import UsageError
from vramcast.job import Command, Job, Training, Until, current_folder
from vramcast.stack import Stack
from vramcast.tracer.process import checkout_root

BUDGET_S: Final = 30.0  # arbitrary: most scripts evaluate their first epoch in less, once it is cut short


def job_of_command(
    command: Sequence[str], device: Device, *, steps: int = 3, until: Until = "evaluation",
    budget_s: float | None = BUDGET_S, memory: int | str | None = None, alloc_conf: str | None = None,
    stack: Stack | None = None,
) -> Job:  # fmt: skip
    """Return the job of `train.py args` or `python train.py args`.

    Args:
        command: Its words.
        device: The card.
        steps: Training steps which are wanted.
        until: How far it is followed, see `Command`.
        budget_s: Seconds which may pass after the last wanted step.
        memory: The card's size, if not the device's own.
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF; None: what script and environment say.
        stack: Software of the card's machine.
    Raises:
        UsageError: there is no script, or it does not exist.
    """
    words = list(command[1:] if command[:1] in (["python"], ["python3"]) else command)
    if not words:
        raise UsageError("No script: write vramcast run [options] -- train.py args.")
    script = Path(words[0])
    if not script.is_file():
        raise UsageError(f"The script '{script}' does not exist: write vramcast run [options] -- train.py args.")
    return Job(
        device=device,
        command=Command((str(script), *words[1:]), until=until, budget_s=budget_s),
        training=Training(steps=steps),
        alloc_conf=alloc_conf,
        stack=stack,
        memory_bytes=checked_card_bytes(memory) if memory is not None else None,
        search_path=_search_path(),
        working_folder=current_folder(),
    )


def _search_path() -> tuple[str, ...]:
    """Return the import path as `python script.py` has it: without the folder in which `python -m vramcast` was started.

    In a checkout of ours that folder has rooms which would pass for packages: `datasets` for Hugging Face's.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ours = {"", current_folder(), str(checkout_root(vramcast))}
    return tuple(entry for entry in sys.path if entry not in ours or entry in named)
