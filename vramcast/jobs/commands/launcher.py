"""A model of launchers of training scripts: a table of options, and the processes they would start. Nothing is run."""

from __future__ import annotations

import argparse
import socket
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from vramcast.core.checks import decimal
from vramcast.core.errors import UsageError
from vramcast.core.text import shorten
from vramcast.jobs.ranks import ALONE, Rank, World

# By launcher: `valued` and `flags`, and further facts about its options.
OPTIONS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("launcher_options.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class LauncherProcesses:
    """The processes that a launcher would start.

    Attributes:
        words: The program and its arguments.
        is_module: Whether the program is a module's name.
        is_command: Whether the program is an executable, to be parsed as a command of its own.
        environment: Variables that the launcher would set for rank 0.
        world: All ranks.
    """

    words: tuple[str, ...]
    is_module: bool
    is_command: bool
    environment: dict[str, str]
    world: World = ALONE


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher: its options, as two lists of names, and their interpretation.

    Attributes:
        name: The name that users type.
        valued: Options with one value, under all their names: `nproc_per_node`, `r|redirects`.
        flags: Options without a value.
        read: Function from the given options, the program with its arguments, and our environment, to the processes.
    """

    name: str
    valued: Sequence[str]
    flags: Sequence[str]
    read: Callable[[dict[str, Any], tuple[str, ...], Mapping[str, str]], LauncherProcesses]

    def launched(self, words: Sequence[str], environment: Mapping[str, str]) -> LauncherProcesses:
        """Return the processes that the launcher would start for the words after its name.

        Raises:
            UsageError: The words are not valid options and a program.
            CannotEstimate: The options select a device other than a GPU.
        """
        options = vars(self.parser().parse_args(list(words)))
        program = (options.pop("program"), *options.pop("arguments"))
        return self.read(options, program, environment)

    def parser(self) -> argparse.ArgumentParser:
        """Return a parser; its result omits options that were not given."""
        parser = _Parser(prog=self.name, add_help=False, argument_default=argparse.SUPPRESS)
        for table, action in ((self.valued, "store"), (self.flags, "store_true")):
            for option in table:
                parser.add_argument(*_spellings(option), dest=option.split("|")[-1], action=action)
        parser.add_argument("program")
        parser.add_argument("arguments", nargs=argparse.REMAINDER)
        return parser


def _spellings(option: str) -> list[str]:
    names = option.split("|")
    long = [name for name in names if len(name) > 1]
    dashed = [name.replace("_", "-") for name in long]
    return [*(f"-{name}" for name in names if len(name) == 1), *(f"--{name}" for name in dict.fromkeys((*long, *dashed)))]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. vramcast supports the launcher's options of releases up to November 2026.")


def whole_number(name: str, value: Any) -> int:
    """Return an option's value as a number.

    Raises:
        UsageError: The value is not a whole number.
    """
    text = str(value)
    found = decimal(text.removeprefix("-"))
    if found is None:
        raise UsageError(f"{name} is '{shorten(text)}': a whole number is expected.")
    return -found if text.startswith("-") else found


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def first_rank(world: World, *, restarts: str = "0", run_id: str = "none", role: str = "default") -> dict[str, str]:
    """Return the variables that torchrun sets for rank 0. # spec: torch 2.11, `LocalElasticAgent._start_workers`."""
    variables = {
        "LOCAL_RANK": "0", "RANK": "0", "GROUP_RANK": "0", "ROLE_RANK": "0", "ROLE_NAME": role, "LOCAL_WORLD_SIZE": "",
        "WORLD_SIZE": "", "GROUP_WORLD_SIZE": "", "ROLE_WORLD_SIZE": "", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": restarts,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # there is no agent, so the process makes its own store
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }  # fmt: skip
    return Rank(0, world).variables(variables)
