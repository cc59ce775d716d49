"""Parsers of programs that run the command after their options (`timeout 2h`, `apptainer exec`), or copies of it (`srun`)."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core.checks import decimal
from vramcast.core.errors import UsageError

WORDS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("program_words.toml").read_text(encoding="utf-8"))
_OTHERS_CARDS: Final = "shard"  # of `--gres`: a part of a card, which a step of a job with shards may request


@dataclass(frozen=True, slots=True)
class Started:
    """The processes that `srun` or `mpirun` starts.

    Attributes:
        words: The command.
        tasks: Number of processes; None: the job's number of tasks.
        nodes: Number of machines; None: all of the job's.
        asks_for_cards: Whether it requests whole cards from Slurm.
    """

    words: tuple[str, ...]
    tasks: int | None
    nodes: int | None
    asks_for_cards: bool


def unwrapped(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the command after one wrapper; None if there is no wrapper.

    Raises:
        UsageError: The wrapper's options are not understood.
    """
    found = _found(words, WORDS["wrappers"])
    if found is None:
        return None
    name, table = found
    _, rest = _options(words[len(name.split()) :], table.get("valued", ()), table.get("flags", ()), name)
    operands = table.get("operands", 0)
    if len(rest) <= operands:
        raise UsageError(f"{name}: no command follows its options.")
    return rest[operands:]


def started(words: Sequence[str]) -> Started | None:
    """Return the processes of a starter; None if there is no starter.

    Raises:
        UsageError: The starter's options are not understood.
    """
    found = _found(words, WORDS["starters"])
    if found is None:
        return None
    name, table = found
    counted = {key: frozenset(table.get(key, ())) for key in ("tasks", "per_node", "nodes", "cards")}
    valued = frozenset(table["valued"]).union(*counted.values())
    options, rest = _options(words[1:], valued, table["flags"], name)

    def number(key: str) -> int | None:
        said = [value for option, value in options if option in counted[key]]
        return _number(name, said[-1]) if said else None

    tasks, per_node, nodes = number("tasks"), number("per_node"), number("nodes")
    if tasks is None and per_node is not None:
        if nodes is None:
            raise UsageError(f"{name}: its number of tasks is unknown: give --ntasks.")
        tasks = per_node * nodes
    asks = any(option in counted["cards"] and _OTHERS_CARDS not in value for option, value in options)
    return Started(rest, tasks, nodes, asks)


def _found(words: Sequence[str], tables: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the table of the program at the beginning of a command."""
    if not words:
        return None
    first = os.path.basename(words[0])
    for name in (f"{first} {words[1]}" if len(words) > 1 else "", first):
        if name in tables:
            table = tables[name]
            return name, tables[table["same"]] if "same" in table else table
    return None


def _options(
    words: Sequence[str], valued: Collection[str], flags: Collection[str], name: str
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return the options at the beginning of a command, and the words after them."""
    options: list[tuple[str, str]] = []
    rest = tuple(words)
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        word, rest = rest[0], rest[1:]
        if word == "--":
            break
        option, equals, value = word.partition("=")
        if word in flags or (equals and option.startswith("--") and (option in flags or option in valued)):
            options.append((option, value))
        elif word in valued and rest:
            options.append((word, rest[0]))
            rest = rest[1:]
        elif not word.startswith("--") and word[:2] in valued and len(word) > 2:
            options.append((word[:2], word[2:]))
        elif not word.startswith("--") and all(f"-{letter}" in flags for letter in word[1:]):
            options += [(f"-{letter}", "") for letter in word[1:]]
        else:
            raise UsageError(f"{name}: the option '{word}' is not supported.")
    return options, rest


def _number(name: str, value: str) -> int:
    """Return a number of tasks or nodes.

    Raises:
        UsageError: The value is not a positive number.
    """
    found = decimal(value)
    if not found:
        raise UsageError(f"{name}: '{value}' is not a number of tasks or nodes.")
    return found
