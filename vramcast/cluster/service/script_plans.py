"""A worker's part of a batch script: it reads the training commands, next to the files sent with them. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from vramcast.cluster.shell.grammar import NotUnderstood
from vramcast.cluster.shell.plan import ScriptStep, to_plain
from vramcast.cluster.shell.script import read_script
from vramcast.core.errors import CannotEstimate

_READ = ("folder", "environment", "files", "tasks", "nodes", "cards")


def plan_of_script(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training commands of a script as questions, and their plan.

    Args:
        values: Values of a `ScriptRequest`, whose files are in the current folder.
    Raises:
        CannotEstimate: A line of the script is not understood, or it trains nothing.
        UsageError: The grammar of scripts is not installed.
    """
    try:
        found = read_script(values["script"], values["arguments"], **{name: values[name] for name in _READ})
    except NotUnderstood as error:
        raise CannotEstimate(str(error)) from None
    if not found.steps:
        raise CannotEstimate("the script has no training command and no #VRAMCAST line")
    numbers = {step: number for number, step in enumerate(found.steps)}
    return {
        "steps": [_question(step) for step in found.steps],
        "plan": to_plain(found.plan, numbers),
        "is_doubtful": found.is_doubtful,
        "steps_ask_for_cards": found.steps_ask_for_cards,
    }


def _question(step: ScriptStep) -> dict[str, Any]:
    return {
        "command": list(step.words),
        "environment": dict(step.environment),
        "folder": step.folder,
        "world_size": step.world_size,
        "nproc_per_node": step.nproc_per_node,
        "copies": step.copies,
    }


def files_below(files: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the files below a folder, by their paths within it."""
    if folder == ".":
        return dict(files)
    below = {PurePosixPath(name): text for name, text in files.items()}
    return {str(path.relative_to(folder)): text for path, text in below.items() if path.is_relative_to(folder)}
