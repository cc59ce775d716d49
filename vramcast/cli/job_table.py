"""A job's table of pyproject.toml as the options of `vramcast check`: its keys are their names, and mean the same."""

from __future__ import annotations

import argparse
import difflib
import math
import shlex
from collections.abc import Mapping
from typing import Any

from vramcast.cli import checked_job
from vramcast.core.errors import UsageError
from vramcast.core.text import shown

_OF_A_TERMINAL = ("json",)  # what one command has, and a job has not


def options_of(name: str, table: Mapping[str, Any]) -> argparse.Namespace:
    """Return the options which a job's table says, as the command line would have read them.

    Args:
        name: The job's, for messages.
        table: `target` or `command`, and the options of `vramcast check` without their dashes. A list repeats an option, and
            true or false switches one.
    Raises:
        UsageError: a key is unknown, or a value is wrong; the message names the job.
    """
    options = {key: value for key, value in table.items() if key not in ("target", "command")}
    if ("target" in table) == ("command" in table):
        raise UsageError(f"Job {shown(name)} needs a target or a command, and not both (docs/ci-gate.md).")
    known = _actions()
    words: list[str] = []
    for key, value in options.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}? It" if close else "it"
            raise UsageError(f"Job {shown(name)} has the key {shown(key)}: {hint} must be an option of vramcast check --help.")
        words += _words(name, key, value, known[key])
    try:
        read = _parser().parse_args(words)
    except argparse.ArgumentError as error:
        raise UsageError(f"Job {shown(name)}: {error}.") from None
    for key, value in options.items():
        if isinstance(value, list) and not isinstance(getattr(read, known[key].dest), list):
            raise UsageError(f"Job {shown(name)}: {key} is {shown(value)}: a text or a number is expected.")
    read.target = _text(name, "target", table["target"]) if "target" in table else None
    read.command = _command(name, table["command"]) if "command" in table else []
    return read


def described(options: argparse.Namespace) -> list[str]:
    """Return the options of the command line which describe a job, as a person writes them."""
    default = vars(_parser().parse_args([]))
    given = {key for key, value in default.items() if key not in _OF_A_TERMINAL and getattr(options, key) != value}
    names: dict[str, str] = {}
    for name, action in _actions().items():
        names.setdefault(action.dest, f"--{name}")
    return [name for key, name in names.items() if key in given]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    checked_job.add_arguments(parser)
    return parser


def _actions() -> dict[str, argparse.Action]:
    """Return the options which a table may have, by name."""
    return {
        option.removeprefix("--"): action
        for action in _parser()._actions
        for option in action.option_strings
        if action.dest not in _OF_A_TERMINAL and not option.startswith("--no-")
    }


def _words(name: str, key: str, value: object, action: argparse.Action) -> list[str]:
    """Return an option as words of a command line; `=` keeps a value which begins with a dash from being an option."""
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise UsageError(f"Job {shown(name)}: {key} is {shown(value)}: it is either true or false.")
        if isinstance(action, argparse.BooleanOptionalAction):
            return [f"--{key}" if value else f"--no-{key}"]
        return [f"--{key}"] if value else []
    values = value if isinstance(value, list) else [value]
    may_be_empty = action.type is str
    return [f"--{key}={_text(name, key, one, may_be_empty=may_be_empty)}" for one in values]


def _text(name: str, key: str, value: object, *, may_be_empty: bool = False) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number and not isinstance(value, str):
        raise UsageError(f"Job {shown(name)}: {key} is {shown(value)}: a text or a number is expected.")
    if value == "" and not may_be_empty:
        raise UsageError(f"Job {shown(name)}: {key} is empty: leave it out, or give a value.")
    return str(value)


def _command(name: str, value: object) -> list[str]:
    """Return a command's words, of one text as a shell would split it, or of a list."""
    if isinstance(value, list):
        words = [_text(name, "command", word, may_be_empty=True) for word in value]
    else:
        try:
            words = shlex.split(_text(name, "command", value))
        except ValueError as error:
            raise UsageError(f"Job {shown(name)}: command is {shown(value)}: {error}.") from None
    if not words:
        raise UsageError(f"Job {shown(name)}: command is empty: write what you type to train.")
    return words
