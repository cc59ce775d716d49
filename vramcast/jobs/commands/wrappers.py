"""Parsers of programs that run the command after their options (`timeout 2h`, `apptainer exec`), or copies of it (`srun`)."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from vramcast.core.checks import decimal
from vramcast.core.errors import UsageError

Variables: TypeAlias = "Mapping[str, str | None]"  # by name; None: known only when the command runs
_VALUED: Final = ("valued", "tasks", "per_node", "per_card", "nodes", "cards", "sets", "only")  # lists of options with a value
WORDS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("program_words.toml").read_text(encoding="utf-8"))
_COUNT: Final = re.compile(r"(?:^|[:=])([0-9]{1,9})(?:\(|$)")  # of `2`, `a100:2` or `gres/gpu:2`. spec: srun(1)


@dataclass(frozen=True, slots=True)
class WrapperProcesses:
    """The processes that `srun` or `mpirun` starts.

    Attributes:
        words: The command.
        sets: Variables that it sets for the command.
        tasks: Number of processes; None: that of the cards, or else the job's number of tasks.
        nodes: Number of machines; None: all of the job's.
        per_card: Number of processes on each card, if given.
        cards: Numbers of cards, each for the whole `job`, a `node` or a `task`; empty: the job's cards.
    """

    words: tuple[str, ...]
    sets: Mapping[str, str]
    tasks: int | None
    nodes: int | None
    per_card: int | None
    cards: Mapping[str, int]


def unwrapped(words: Sequence[str], variables: Variables) -> tuple[tuple[str, ...], Variables] | None:
    """Return the command after one wrapper, and the variables set for it; None if there is no wrapper.

    Raises:
        UsageError: The wrapper's options are not understood.
    """
    found = _found(words, WORDS["wrappers"])
    if found is None:
        return None
    name, table = found
    options, rest = read_options(words[len(name.split()) :], table, name)
    operands = table.get("operands", 0)
    if len(rest) <= operands:
        raise UsageError(f"{name}: no command follows its options.")
    prefixes = table.get("prefixes", ())
    passed = {one.removeprefix(prefix): variables[one] for prefix in prefixes for one in variables if one.startswith(prefix)}
    return rest[operands:], passed | _set_by(options, table)


def started(words: Sequence[str], variables: Variables) -> WrapperProcesses | None:
    """Return the processes of a starter, whose variables may stand for options; None if there is no starter.

    Raises:
        UsageError: The starter's options are not understood.
    """
    found = _found(words, WORDS["starters"])
    if found is None:
        return None
    name, table = found
    stands = dict(one.split() for one in table.get("variables", ()))
    said = [f"{option}={variables[one]}" for one, option in stands.items() if one in variables]
    options, rest = read_options((*said, *words[1:]), table, name)
    if ":" in rest:
        raise UsageError(f"{name}: several commands, separated by ':', are not supported.")

    def number(key: str) -> int | None:
        said = [value for option, value in options if option in table.get(key, ())]
        if said and not decimal(said[-1]):
            raise UsageError(f"{name}: '{said[-1]}' is not a number of tasks or nodes.")
        return decimal(said[-1]) if said else None

    tasks, per_node, nodes = number("tasks"), number("per_node"), number("nodes")
    if tasks is None and per_node is not None:
        if nodes is None:
            raise UsageError(f"{name}: its number of tasks is unknown: give --ntasks.")
        tasks = per_node * nodes
    of = dict(one.split() for one in table.get("cards", ()))
    cards = {
        of[option]: int(count[1]) if (count := _COUNT.search(part)) else 1
        for option, value in options
        for part in value.split(",")
        if option in of and "shard" not in part and ("gpu" in part or "gpu" in option or option == "-G")
    }
    return WrapperProcesses(rest, _set_by(options, table), tasks, nodes, number("per_card"), cards)


def _set_by(options: Sequence[tuple[str, str]], table: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that options set: `--export=ALL,NAME=value`."""
    separators = table.get("sets", {})
    said = [part for option, value in options if option in separators for part in re.split(separators[option] or "$^", value)]
    return {name: value for name, equals, value in (part.partition("=") for part in said) if equals}


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


def read_options(words: Sequence[str], table: Mapping[str, Any], name: str) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return the options at the beginning of a command, and the words after them.

    Raises:
        UsageError: An option, or its value, is not in the table.
    """
    options: list[tuple[str, str]] = []
    flags = frozenset(table.get("flags", ()))
    valued = frozenset(one.split()[0] for key in _VALUED for one in table.get(key, ()))
    rest = tuple(words)
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        word, rest = rest[0], rest[1:]
        if word == "--":
            break
        option, equals, value = word.partition("=")
        if word in flags or (equals and option.startswith("--") and (option in flags or option in valued)):
            options.append((option, value))
        elif word in valued and rest:
            pair = word in table.get("pairs", ()) and "=" not in rest[0]
            options.append((word, "=".join(rest[: 1 + pair])))
            rest = rest[1 + pair :]
        elif not word.startswith("--") and word[:2] in valued and len(word) > 2:
            options.append((word[:2], word[2:]))
        elif not word.startswith("--") and all(f"-{letter}" in flags for letter in word[1:]):
            options += [(f"-{letter}", "") for letter in word[1:]]
        else:
            raise UsageError(f"{name}: the option '{word}' is not supported.")
    for option, value in options:
        if not re.fullmatch(table.get("only", {}).get(option, ".*"), value, re.DOTALL):
            raise UsageError(f"{name}: the option '{option} {value}' is not supported.")
    return options, rest
