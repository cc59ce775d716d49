"""The axes of a command that an option, a variable or a file sets: `batch=--bs`, `batch=env:BS`, `batch=a.yaml:key`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramcast.core.configuration import read_configuration, write_configuration
from vramcast.core.errors import UsageError
from vramcast.core.text import shown
from vramcast.estimates.axes.axis import JobAxis
from vramcast.jobs.job import Command, Job


def axis_from_outside(job: Job, name: str, place: str) -> JobAxis:
    """Return the axis of a command that a place outside its program sets.

    Args:
        job: The command's job.
        name: The name of the axis, for the answer.
        place: `--option`, `env:NAME`, or `FILE:key.of.value` of a YAML or JSON file that the command names.

    Raises:
        UsageError: The place does not exist, or holds no positive whole number.
    """
    if job.command is None:
        raise UsageError(f"--axis {name}={place} is for commands: write --axis {name} for a TARGET.")
    if place.startswith("-"):
        own, changed, way = _option(job.command, place)
    elif place.startswith("env:"):
        own, changed, way = _variable(job.command, place.removeprefix("env:"))
    elif ":" in place:
        own, changed, way = _key(job.command, *place.rsplit(":", 1))
    else:
        raise UsageError(f"--axis {name}={place}: expected --option, env:NAME or FILE:key after the equals sign.")
    return JobAxis(name, _positive(own, place), lambda value: replace(job, command=changed(value)), lambda value, _: way(value))


_Found = tuple[Any, Callable[[int], Command], Callable[[int], str]]


def _positive(value: Any, place: str) -> int:
    text = str(value)
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise UsageError(f"{place} is {shown(value)}: expected a positive whole number to start from.")
    return int(text)


def _option(command: Command, option: str) -> _Found:
    words = command.words
    at = next((at for at, word in enumerate(words[1:], 1) if word == option or word.startswith(f"{option}=")), len(words))
    if at < len(words) and words[at] != option:
        value, form = words[at].partition("=")[2], f"{option}={{}}".format
        return value, lambda value: _with_word(command, at, form(value)), form
    if at + 1 < len(words):
        return words[at + 1], lambda value: _with_word(command, at + 1, str(value)), f"{option} {{}}".format
    raise UsageError(f"The command has no option {option} with a value: add it with its present value, {option} 8.")


def _with_word(command: Command, at: int, word: str) -> Command:
    return replace(command, words=(*command.words[:at], word, *command.words[at + 1 :]))


def _variable(command: Command, name: str) -> _Found:
    own = {**os.environ, **dict(command.environment)}.get(name)
    if own is None:
        raise UsageError(f"The variable {name} is not set: set it to its present value, {name}=8 vramcast largest ...")
    return own, lambda value: replace(command, environment=(*command.environment, (name, str(value)))), f"{name}={{}}".format


def _key(command: Command, file: str, key: str) -> _Found:
    """Return the value at a key of a file; other values are written to a copy, which the command reads in its place."""
    at = next((at for at, word in enumerate(command.words) if word == file or word.endswith(f"={file}")), None)
    if at is None:
        raise UsageError(f"No word of the command names {file}: vramcast can change only a file that the command is given.")
    path = Path(file)
    try:
        content = read_configuration(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read ({type(error).__name__}: {error}): give a YAML or JSON file.") from None
    holder: Any = content
    *levels, last = key.split(".")
    for level in levels:
        holder = holder.get(level) if isinstance(holder, dict) else None
    if not isinstance(holder, dict) or last not in holder:
        raise UsageError(f"{file} has no key {key}: name each level, as in train.batch_size.")
    folder = tempfile.TemporaryDirectory(prefix="vramcast-")  # it lives as long as `changed` does
    own, word = holder[last], command.words[at]

    def changed(value: int) -> Command:
        holder[last] = value
        copy = Path(folder.name, f"{value}{path.suffix}")
        write_configuration(copy, content)
        holder[last] = own
        return _with_word(command, at, word.removesuffix(file) + str(copy))

    return own, changed, f"{key}: {{}} in {file}".format
