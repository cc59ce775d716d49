"""The ranks of a serving engine, which starts a process for each card by itself."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from vramcast.core.checks import decimal
from vramcast.jobs.commands.launcher import first_rank
from vramcast.jobs.job import Command
from vramcast.jobs.ranks import ALONE, World

_COMMAND: Final = ("vllm", "serve")
PACKAGES: Final = {"vllm": "vllm"}  # by command
_MODULE: Final = "vllm.entrypoints.openai.api_server"
# spec: vLLM 0.22, EngineArgs.add_cli_args. argparse also accepts beginnings of these names.
_SIZES: Final = {"tensor": ("-tp", "--tensor-parallel-size"), "pipeline": ("-pp", "--pipeline-parallel-size")}


def world_of(words: Sequence[str]) -> World:
    """Return the ranks of a serving command; one for any other command, and for a size that the engine rejects.

    Args:
        words: The program and its arguments, as an interpreter receives them.

    Example:
        >>> world_of(["/usr/bin/vllm", "serve", "org/name", "-tp", "2", "--pipeline_parallel_size=2"]).size
        4
    """
    if not is_server(words):
        return ALONE
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for name, spellings in _SIZES.items():
        parser.add_argument(*spellings, dest=name, default="1")
    dashed = [_dashed(word) for word in words[1:]]
    try:
        sizes = vars(parser.parse_known_args(dashed)[0])
    except argparse.ArgumentError:
        return ALONE
    size = 1
    for value in sizes.values():
        size *= decimal(value) or 1
    return World(size) if size > 1 else ALONE


def is_server(words: Sequence[str]) -> bool:
    """Return whether a program and its arguments start an engine that serves."""
    return (os.path.basename(words[0]), *words[1:2]) == _COMMAND or words[0] == _MODULE


def changed(command: Command, *options: str) -> Command:
    """Return a server's command with other options, which replace equal ones, and with the ranks that it then has."""
    words = (*command.words, *options)
    world = world_of(words)
    environment = dict(command.environment) | (first_rank(world) if world != ALONE else {})
    return replace(command, words=words, world=world, environment=tuple(environment.items()))


def _dashed(word: str) -> str:
    """Return an option with dashes in its name, as vLLM's parser reads it."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word
