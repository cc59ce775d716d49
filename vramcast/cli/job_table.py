"""A job's table in pyproject.toml as a `CheckedJob`; its keys are the options of `vramcast check`."""

from __future__ import annotations

import argparse
import difflib
import math
import shlex
from collections.abc import Mapping
from typing import Any, Final

from vramcast.cli import checked_job
from vramcast.cli import options as shared
from vramcast.cli.checked_job import CheckedJob
from vramcast.core.errors import DatasetError, UsageError
from vramcast.core.plain import from_plain
from vramcast.core.text import shown
from vramcast.jobs.job import TracerName

_TEXTS: Final = ("optimizer", "ranks", "stack", "device", "on", "artifact", "host_memory")
_OTHER: Final = {"tracer": TracerName, "level": float, "timeout": float, "bracket": bool, "strict": bool}
_HINTS: Final = {**shared.HINTS, **_OTHER, **dict.fromkeys(_TEXTS, str)}
_TYPES: Final[dict[str, Any]] = {name.replace("_", "-"): kind for name, kind in _HINTS.items() if name != "training"}
_SPELT: Final = {"on": "device", "timeout": "timeout_s"}  # where key and field differ by more than a dash
_OF_SEVERAL: Final = ("batch", "command")
_MAY_BE_EMPTY: Final = ("alloc-conf", "command")  # an empty value means torch's defaults; a single string holds a whole command


def read(name: str, table: Mapping[str, Any]) -> CheckedJob:
    """Return the job that a table describes.

    Args:
        name: Name of the job, for messages.
        table: `target` or `command`, and options of `vramcast check` without their dashes. A list repeats an option, and a
            boolean sets a switch.
    Raises:
        UsageError: A key is unknown, or a value is wrong; the message names the job.
    """
    if ("target" in table) == ("command" in table):
        raise UsageError(
            f"Job {shown(name)} needs exactly one of target and command: add one, or remove the other (docs/ci-gate.md)."
        )
    for key in table:
        if key not in _TYPES:
            close = difflib.get_close_matches(key, _TYPES, n=1)
            hint = f"did you mean {close[0]}? A key" if close else "a key"
            raise UsageError(
                f"Job {shown(name)} has the unknown key {shown(key)}: {hint} must be an option of vramcast check --help."
            )
    try:
        return CheckedJob.of({_field(key): _value(key, value) for key, value in table.items()})
    except (DatasetError, UsageError) as error:
        raise UsageError(f"Job {shown(name)}: {error}") from None


def described(options: argparse.Namespace) -> list[str]:
    """Return the options of the command line that describe a job and were given, as a user writes them."""
    parser = argparse.ArgumentParser(add_help=False)
    checked_job.add_arguments(parser)
    keys = [key for key in _TYPES if key not in ("device", "target", "command")]
    return [f"--{key}" for key in keys if getattr(options, _field(key)) != parser.get_default(_field(key))]


def _field(key: str) -> str:
    return _SPELT.get(key, key.replace("-", "_"))


def _value(key: str, value: object) -> Any:
    """Return a value of a table in the form that its key expects; a number may replace a string, as in `batch = 32`."""
    kind = _TYPES[key]
    if key == "command" and isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise UsageError(f"command is {shown(value)}: {error}.") from None
    values = value if isinstance(value, list) else [value]
    if not values or (key not in _MAY_BE_EMPTY and "" in values):
        raise UsageError(f"{key} is empty: leave it out, or give a value.")
    if key in _OF_SEVERAL:
        value = [_text(one) for one in values]
    elif kind in (str, str | None):
        value = _text(value)
    return from_plain(kind, value, key)


def _text(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return str(value) if is_number else value
