"""The Python program behind the interpreters, wrappers and launchers of a command. Nothing is run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from vramcast.core.checks import decimal, whole
from vramcast.core.errors import UsageError
from vramcast.jobs import caller_variables
from vramcast.jobs.commands import engines, launchers, wrappers
from vramcast.jobs.commands.launcher import OPTIONS, Launcher, first_rank
from vramcast.jobs.job import Command
from vramcast.jobs.ranks import ALONE, Rank, World

_EXAMPLE: Final = "write vramcast run [options] -- train.py args"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"(?:python|pypy)(\d+(?:\.\d+)?)?t?(?:\.exe)?")
# Options of the interpreter with a value, alone or after others in one word. # spec: python --help
_VALUED_LETTERS: Final = "WX"
_PROGRAM_LETTERS: Final = "cm"  # spec: python --help; the program and its arguments follow
_VALUED_WORDS: Final = frozenset({"--check-hash-based-pycs"})
_RUNNERS: Final = frozenset({"poetry", "pipenv", "pdm", "rye"})  # `poetry run COMMAND`, without options before COMMAND
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "fish"})
_STARTERS: Final = frozenset({"srun", "sbatch", "mpirun", "mpiexec", "horovodrun", "docker", "ssh", "ray", "nsys", "ncu"})
_HEAD_BYTES: Final = 256  # arbitrary: room for a first line


@dataclass(slots=True)
class _Reader:
    """The remaining words of a command, and the results so far.

    Attributes:
        words: Words that were not parsed yet.
        inherited: The environment of the command.
        added: Variables that the command adds to it.
        world: The ranks that the command requests.
        notes: Remarks for the answer's warnings.
    """

    words: tuple[str, ...]
    inherited: Mapping[str, str]
    added: dict[str, str] = field(default_factory=dict)
    world: World = ALONE
    notes: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.inherited, **self.added}

    def read(self) -> Command:
        while True:
            if not self.words:
                raise UsageError(f"No script: {_EXAMPLE}.")
            word = self.words[0]
            name = os.path.basename(word)
            steps: tuple[tuple[bool, Callable[[], Command | None]], ...] = (
                (bool(_ASSIGNMENT.match(word)) and not os.path.exists(word), self._assign),
                (name == "env", self._env),
                (not os.path.exists(word) and wrappers.unwrapped(self.words, {}) is not None, self._unwrap),
                (name == "uv" and self.words[1:2] == ("run",), self._uv),
                (name in _RUNNERS and self.words[1:2] == ("run",), lambda: self._drop(2)),
                (bool(_PYTHON.fullmatch(name)) and (os.path.isfile(word) or name == word), self._python),
                (launchers.find(self.words, launchers.BY_WORDS) is not None, lambda: self._launch(launchers.BY_WORDS)),
                (name in _SHELLS and not os.path.isfile(name), self._refuse_shell),
                (name in _STARTERS and not os.path.isfile(word), self._refuse_starter),
            )
            step = next((step for applies, step in steps if applies), self._script)
            command = step()
            if command is not None:
                return command

    # -------------------------------------------------------------------------------------------- prefixes
    def _drop(self, count: int = 1) -> None:
        self.words = self.words[count:]

    def _unwrap(self) -> None:
        self.words, added = wrappers.unwrapped(self.words, self.environment) or ((), {})
        self.added |= {name: value for name, value in added.items() if value is not None}

    def _assign(self) -> None:
        name, _, value = self.words[0].partition("=")
        self.added[name] = value
        self._drop()

    def _env(self) -> None:
        self._drop()
        while self.words and self.words[0].startswith("-"):
            if self.words[0] != "--":
                raise UsageError(f"env {self.words[0]} is not supported: env may only have NAME=value.")
            self._drop()

    def read_uv(self) -> bool:
        """Read `uv run` and its options, and add the variables of its files; return whether a module's name follows."""
        found, self.words = wrappers.read_options(self.words[2:], OPTIONS["uv"], "uv run")
        options = [option for option, _ in found]
        files = [
            *self.environment.get("UV_ENV_FILE", "").split(),
            *(value for option, value in found if option == "--env-file"),
        ]
        for path in (
            () if "--no-env-file" in options else reversed(files)
        ):  # spec: uv's docs: the environment, then the last file
            self.added |= {name: value for name, value in _variables_in(path).items() if name not in self.environment}
        return "-m" in options or "--module" in options

    def _uv(self) -> Command | None:
        return self._module(self.words) if self.read_uv() else None

    def _refuse_shell(self) -> Command | None:
        raise UsageError(f"'{' '.join(self.words[:2])}' is a shell script: give the Python command in it.")

    def _refuse_starter(self) -> Command | None:
        raise UsageError(f"'{self.words[0]}' starts processes elsewhere: give the command that each of them runs.")

    # -------------------------------------------------------------------------------------------- interpreters, launchers
    def _python(self) -> Command | None:
        self._note_interpreter(self.words[0])
        self._drop()
        while self.words and self.words[0].startswith("-"):
            word = self.words[0]
            self._drop()
            if word == "-":
                raise UsageError(f"A program on stdin is not supported: {_EXAMPLE}.")
            if word.startswith("--"):
                self._drop(1 if word in _VALUED_WORDS else 0)
                continue
            for at, letter in enumerate(word[1:], start=1):
                if letter not in _VALUED_LETTERS + _PROGRAM_LETTERS:
                    continue
                rest = (word[at + 1 :],) if word[at + 1 :] else self.words[:1]
                self._drop(0 if word[at + 1 :] else 1)
                if not rest:
                    raise UsageError(f"python -{letter} needs a value.")
                if letter == "m":
                    return self._module((*rest, *self.words))
                if letter == "c":
                    return self._command((*rest, *self.words), is_code=True)
                break
        return None if self.words and self._is_launcher_file() else self._script()

    def _is_launcher_file(self) -> bool:
        """Return whether `python PATH` runs a launcher's console script, as in `python /venv/bin/torchrun`."""
        return os.path.isfile(self.words[0]) and launchers.find(self.words, launchers.BY_WORDS) is not None

    def _module(self, words: tuple[str, ...]) -> Command | None:
        self.words = words
        if not words:
            raise UsageError("python -m needs a module's name.")
        if launchers.find(words, launchers.BY_MODULE) is not None:
            return self._launch(launchers.BY_MODULE)
        return self._command(words, is_module=True)

    def _launch(self, table: Mapping[tuple[str, ...], Launcher]) -> Command | None:
        found = launchers.find(self.words, table)
        assert found is not None
        launcher, words = found
        launched = launcher.launched(words, self.environment)
        self.added |= launched.environment
        self.world = launched.world if launched.world.size > 1 else self.world
        self.words = launched.words
        if launched.is_command:
            return None
        return self._command(launched.words, is_module=True) if launched.is_module else self._script()

    # -------------------------------------------------------------------------------------------- the program
    def _script(self) -> Command:
        if not self.words:
            raise UsageError(f"No script: {_EXAMPLE}.")
        word = self.words[0]
        if word.startswith("-"):
            raise UsageError(f"'{word}' is not a script: {_EXAMPLE}.")
        path = Path(word)
        if not path.exists():
            path = self._on_path(word)
        if path.is_dir():
            if not (path / "__main__.py").is_file():
                raise UsageError(f"The folder '{word}' has no __main__.py: {_EXAMPLE}.")
        elif not zipfile.is_zipfile(path):
            self._check_python(path)
        return self._command((str(path), *self.words[1:]))

    def _on_path(self, word: str) -> Path:
        """Return the console script of that name, from PATH or from the folder of our own interpreter."""
        if os.sep not in word:
            found = shutil.which(word, path=self.environment.get("PATH")) or shutil.which(
                word, path=os.path.dirname(sys.executable)
            )
            if found is not None:
                return Path(found)
        install = engines.PACKAGES.get(word)
        next_step = _EXAMPLE if install is None else f"install the engine in this environment (pip install {install})"
        raise UsageError(f"There is no script or command '{word}': {next_step}.")

    def _check_python(self, path: Path) -> None:
        """Raise if a file is certainly not a Python program; a file without an interpreter line may be one."""
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if path.suffix in (".py", ".pyw"):
            return
        lines = head.splitlines() or [b""]
        if head.startswith(b"#!") and b"python" not in lines[0]:
            if not (len(lines) > 1 and lines[1].startswith(b"'''exec'")):  # the form for an interpreter with a long path
                raise UsageError(f"'{path}' is a script of {lines[0][2:].decode(errors='replace').strip()}, not of Python.")
        elif b"\0" in head:
            raise UsageError(f"'{path}' is a binary program, not a script of Python.")
        elif head.startswith(b"#!"):
            self._note_interpreter(lines[0][2:].decode(errors="replace").split()[0])

    def _command(self, words: tuple[str, ...], *, is_module: bool = False, is_code: bool = False) -> Command:
        world = self.world
        if not is_code and world == ALONE:
            world = engines.world_of(words)
            self.added |= first_rank(world) if world != ALONE else {}
        return Command(
            words,
            is_module=is_module,
            is_code=is_code,
            environment=tuple(self.added.items()),
            notes=tuple(self.notes),
            world=world,
        )

    def _note_interpreter(self, interpreter: str) -> None:
        """Note that the job runs under our interpreter, if the command names another one."""
        match = _PYTHON.fullmatch(os.path.basename(interpreter))
        asked = match[1] if match is not None else None
        ours = f"{sys.version_info.major}.{sys.version_info.minor}"
        is_same = asked is None or asked in (ours, str(sys.version_info.major))
        if os.sep in interpreter and os.path.exists(interpreter):
            is_same = is_same and os.path.dirname(os.path.abspath(interpreter)) == os.path.dirname(
                os.path.abspath(sys.executable)
            )
        if not is_same:
            self.notes.append(
                f"the command names {interpreter}, but the job ran under vramcast's own Python {ours}, {sys.executable}"
            )


def read(
    words: Sequence[str], environment: Mapping[str, str], world_size: int | None = None, nproc_per_node: int | None = None
) -> Command:
    """Parse a command, with the given number of ranks, or else its launcher's, or else the environment's.

    Args:
        words: The words, as split by a shell.
        environment: The environment of the command.
        world_size: Number of ranks, if given.
        nproc_per_node: Number of ranks on each machine, if given.
    Raises:
        UsageError: The command runs no Python program, or a number of ranks is wrong.
        CannotEstimate: The command selects a device other than a GPU.
    """
    if nproc_per_node is not None:
        whole("nproc_per_node (--nproc-per-node)", nproc_per_node, least=1)
    command = _Reader(tuple(words), environment).read()
    if said := caller_variables.note(environment):
        command = replace(command, notes=(*command.notes, said))
    given = {**environment, **dict(command.environment)}.get("WORLD_SIZE", "")
    stated = command.world.size if command.world.size > 1 else decimal(given) or 1
    size = world_size if world_size is not None else stated if stated > 1 else nproc_per_node or 1
    per_node = nproc_per_node or (command.world.per_node if size == command.world.size else 0)
    world = World(size, per_node)
    if size == 1 or world == command.world:
        return replace(command, world=world)
    variables = Rank(0, world).variables({**first_rank(world), **dict(command.environment)})
    return replace(command, world=world, environment=tuple(variables.items()))


def _variables_in(path: str) -> dict[str, str]:
    """Return the variables of a file of `NAME=value` lines, without the references and escapes in which its readers differ."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        words = [word for line in lines for word in shlex.split(line, comments=True) if word != "export"]
    except (OSError, ValueError) as error:
        raise UsageError(f"The environment file '{path}' cannot be read: {error}.") from None
    if any(re.search(r"[$\\]|\S#", line) for line in lines) or any("=" not in word for word in words):
        raise UsageError(f"The environment file '{path}' is not supported: write NAME=value in each line.")
    return dict(word.split("=", 1) for word in words)


def uv_variables(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `uv run` takes from files."""
    reader = _Reader(tuple(words), environment)
    if os.path.basename(words[0]) == "uv":
        reader.read_uv()
    return reader.added


def is_python(words: Sequence[str]) -> bool:
    """Return whether a command is recognizable as Python: by its interpreter, its launcher, or a script's name."""
    name = os.path.basename(words[0])
    is_launched = launchers.find(words, launchers.BY_WORDS) is not None or name == "uv" or name in _RUNNERS
    return is_launched or name.endswith(".py") or bool(_PYTHON.fullmatch(name))
