"""What a batch script trains: its `#VRAMCAST` line, or the training commands in it. Nothing of it is run.

    #VRAMCAST target=hf:bert batch=input_ids=8x128:int64<30522 optimizer=adamw
    #VRAMCAST off

Of the shell it knows: assignments, `export`, `cd`, variables, `&&`, `;`, redirections, continued lines, here-documents (passed
over), and `srun` before a command. A command with something else in it, `$(...)` for example, is not understood.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from vramcast.jobs.commands.launchers import BY_WORDS
from vramcast.schedulers.answer import value_of
from vramcast.schedulers.slurm.options import CARD_OPTIONS

MARK: Final = "#VRAMCAST"
_LISTS: Final = frozenset({"batch"})
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?")
_LAUNCHERS: Final = frozenset(words[0] for words in BY_WORDS)
_PREFIXES: Final = frozenset({"nohup", "time", "exec", "command", "do", "then", "else", "{", "if"})
_NO_TRAINING: Final = frozenset({"-c", "--version", "-V"})  # of python: nothing that trains
_NO_TRAINING_MODULES: Final = frozenset({"pip", "venv", "ensurepip", "nvidia_smi", "json.tool"})
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_HERE: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_VARIABLE: Final = re.compile(r"\$(?:(\w+|@|\*)|\{(\w+)(?::?-([^}$`]*))?\})")
# Where one command of a line ends; a redirection ends its words.
_ENDS: Final = frozenset({"&&", "||", ";", ";;", "&", "|", "|&"})
_REDIRECTION: Final = re.compile(r"(?:&>>?|[<>]).*")
# Options of srun which take no value. # spec: srun(1), Slurm 22.05 to 25.05
_FLAGS: Final = frozenset(
    {"--allocations", "--contiguous", "--disable-status", "--exact", "--exclusive", "--interactive", "--label", "--no-allocate"}
    | {"--no-kill", "--oversubscribe", "--overcommit", "--overlap", "--preserve-env", "--pty", "--quiet", "--quit-on-interrupt"}
    | {"--reboot", "--spread-job", "--test-only", "--unbuffered", "--use-min-nodes", "--verbose", "--whole", "--hold"}
    | {"--kill-on-bad-exit", "--immediate", "--get-user-env", "--external", "--multi-prog", "--propagate", "--nice"}
)
_FLAG_LETTERS: Final = frozenset("lkuvKQsEHIOXZ")
_TASKS: Final = ("--ntasks", "-n")
_CARDS: Final = frozenset({"--gres", "-G", "--tres-per-task", *(f"--{name}" for name in CARD_OPTIONS)})


@dataclass(frozen=True, slots=True)
class Trained:
    """One training command.

    Attributes:
        words: As they are run, without `srun`.
        environment: What the script exports before it.
        folder: Where it runs.
        tasks: How many of it `srun` starts, where it says so itself.
        by_srun: Whether `srun` starts it: once for each task of the job.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: PurePosixPath
    tasks: int | None = None
    by_srun: bool = False


@dataclass(slots=True)
class BatchScript:
    """What a batch script says.

    Attributes:
        named: The job as `#VRAMCAST` lines name it: the body of a question; None: no such line.
        is_off: Whether the script asks to be left alone.
        commands: Its training commands, in order.
        steps_ask_for_cards: Whether an `srun` in it asks for `gpu` itself: such a step fails in a job that has shards.
        unknown: Lines which may train and are not understood.
    """

    named: dict[str, Any] | None = None
    is_off: bool = False
    commands: list[Trained] = field(default_factory=list)
    steps_ask_for_cards: bool = False
    unknown: list[str] = field(default_factory=list)


def read_script(text: str, arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> BatchScript:
    """Return what a batch script trains.

    Args:
        text: Of the script.
        arguments: With which it is submitted.
        folder: Where the job will run.
        environment: In which it is submitted.
    """
    found = BatchScript()
    # The variables of a job of which something is known before it runs.
    known = {"SLURM_SUBMIT_DIR": str(folder), "PWD": str(folder), "SLURM_JOB_ID": "0", "SLURM_JOBID": "0"}
    shell = _Shell({**environment, **known}, arguments, PurePosixPath(folder))
    for line in _lines(text):
        if line.startswith(MARK):
            _name(found, line.removeprefix(MARK))
        elif not line.startswith("#"):
            shell.read(line, found)
    return found


def _name(found: BatchScript, rest: str) -> None:
    if rest.strip() == "off":
        found.is_off = True
        return
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:
        found.unknown.append(MARK + rest)
        return
    named = found.named if found.named is not None else {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            found.unknown.append(word)
        elif key in _LISTS:
            named.setdefault(key, []).append(value)
        else:
            named[key] = value_of(value)
    found.named = named


def _lines(text: str) -> Iterator[str]:
    """Yield a script's lines, continued ones joined, without here-documents."""
    until, joined = "", ""
    for line in text.splitlines():
        if until:
            until = "" if line.strip() == until else until
            continue
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            joined += line[:-1] + " "
            continue
        whole, joined = (joined + line).strip(), ""
        here = _HERE.search(whole)
        if here:
            until = here[2]
        if whole:
            yield whole


@dataclass(slots=True)
class _Shell:
    """What the lines read so far leave behind them."""

    variables: dict[str, str]
    arguments: tuple[str, ...]
    folder: PurePosixPath
    exported: dict[str, str] = field(default_factory=dict)

    def read(self, line: str, found: BatchScript) -> None:
        """Read one line."""
        for words in _commands(line):
            expanded = self._expanded(words)
            if expanded is None:
                if any(_trains(PurePosixPath(word).name) for word in words):
                    found.unknown.append(line)
                continue
            self._run(expanded, line, found)

    def _run(self, words: list[str], line: str, found: BatchScript) -> None:
        """Do what a command does to the lines after it, and keep it if it trains."""
        words, told = _without_assignments(_without_redirections(words))
        if not words:
            self.variables.update(told)
            self.exported.update({name: value for name, value in told.items() if name in self.exported})
            return
        if words[0] == "export":
            new = dict(word.split("=", 1) for word in words[1:] if "=" in word)
            new.update({word: self.variables.get(word, "") for word in words[1:] if "=" not in word})
            self.variables.update(new)
            self.exported.update(new)
            return
        if words[0] == "cd" and len(words) == 2:
            self.folder = self.folder / words[1]
            return
        while words and words[0] in _PREFIXES:
            words, more = _without_assignments(words[1:])
            told |= more
        by_srun = bool(words) and PurePosixPath(words[0]).name == "srun"
        options: list[tuple[str, str]] = []
        if by_srun:
            options, words = _options_of(words[1:])
        tasks = next((value for name, value in reversed(options) if name in _TASKS), None)
        if (by_srun and not words) or (tasks is not None and not tasks.isdecimal()):  # options which are not understood
            found.unknown.append(line)
            return
        found.steps_ask_for_cards |= any(name in _CARDS and "shard" not in value for name, value in options)
        if _is_training(words):
            environment = {**self.exported, **told}
            found.commands.append(Trained(tuple(words), environment, self.folder, int(tasks) if tasks else None, by_srun))

    def _expanded(self, words: list[str]) -> list[str] | None:
        """Return words with their variables' values; None: one is known only when the job runs."""
        done: list[str] = []
        for word in words:
            if word in ("$@", "$*"):
                done += self.arguments
                continue
            if "$(" in word or "`" in word:
                return None
            missing = False

            def value(match: re.Match[str]) -> str:
                nonlocal missing
                name = match[1] or match[2]
                if name.isdecimal() and 0 < int(name) <= len(self.arguments):
                    return self.arguments[int(name) - 1]
                found = self.variables.get(name, match[3])
                missing |= found is None
                return found or ""

            word = _VARIABLE.sub(value, word)
            if missing or "$" in word:
                return None
            done.append(word)
        return done


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the commands of one line, each as its words; quotes are gone, variables are not replaced yet."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    try:
        for word in lexer:
            if word in _ENDS:
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # an open quote: the command goes on in the next line
        return
    yield words


def _is_training(words: list[str]) -> bool:
    if not words or not _trains(PurePosixPath(words[0]).name):
        return False
    rest = words[1:]
    if not rest or rest[0] in _NO_TRAINING:
        return False
    return not (rest[0] == "-m" and len(rest) > 1 and rest[1] in _NO_TRAINING_MODULES)


def _trains(name: str) -> bool:
    return bool(_PYTHON.fullmatch(name)) or name in _LAUNCHERS


def _without_assignments(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return a command without the variables before it, and these."""
    told: dict[str, str] = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        told[match[1]] = match[2]
        words = words[1:]
    return words, told


def _without_redirections(words: list[str]) -> list[str]:
    """Return a command's words up to its first redirection."""
    for k, word in enumerate(words):
        if _REDIRECTION.fullmatch(word.lstrip("0123456789")):
            return words[:k]
    return words


def _options_of(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options of an `srun`, and the command which it starts; no command: they are not understood."""
    options: list[tuple[str, str]] = []
    rest = words
    while rest and rest[0].startswith("-"):
        word, rest = rest[0], rest[1:]
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            is_whole = bool(equals) or name in _FLAGS
        else:
            name, value = word[:2], word[2:]
            is_whole = bool(value) or name[1:] in _FLAG_LETTERS
        if not is_whole and rest:
            value, rest = rest[0], rest[1:]
        options.append((name, value))
    return options, rest
