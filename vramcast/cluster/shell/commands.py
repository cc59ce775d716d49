"""The simple commands of a shell script: builtins that change the state, harmless programs, and training commands."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vramcast.cluster.shell.grammar import NotUnderstood, not_understood
from vramcast.cluster.shell.plan import Plan, ScriptStep, Together
from vramcast.cluster.shell.programs import JobFiles, Simple, Unread, is_harmless
from vramcast.cluster.shell.state import State, joined
from vramcast.core.checks import decimal
from vramcast.core.errors import VramcastError
from vramcast.core.text import shorten
from vramcast.jobs.commands import reading, wrappers
from vramcast.jobs.commands.wrappers import WORDS, WrapperProcesses

if TYPE_CHECKING:
    from tree_sitter import Node

_SOURCED: Final = frozenset(WORDS["harmless"]["sourced"])
_SHELLS: Final = frozenset({"bash", "sh", "dash"})
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Variables that change no size, such as paths and addresses. Their values may stay unknown.
_NO_SIZE: Final = re.compile(
    r"(\w*_)?(ADDR|ADDRESS|PORT|HOST|HOSTNAME|KEY|TOKEN|SECRET|PASSWORD|URL|URI|PROXY|SOCKET|IFNAME|HOME|CACHE|TMPDIR|PATH|DIR|PREFIX"
    r"|http_proxy|https_proxy|no_proxy|NAME|ID)|OMP_NUM_THREADS|MKL_NUM_THREADS|USER|LOGNAME|LANG|LC_\w+|PWD"
)
# Variables of the submitting machine: the service uses its own values.
_OF_THE_MACHINE: Final = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "PWD", "TMPDIR", "SHELL", "USER", "LOGNAME", "PYTHONHOME"}
)
_CHANGES_SHELLS: Final = frozenset({"BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT", "GLOBIGNORE", "CDPATH"})
# Options of the shell, as letters and names. spec: bash(1), set; others (`keyword`, `posix`) change words or assignments
_LETTERS: Final = frozenset("abefhmnuvxCEHPTo")
_NAMES: Final = re.compile("allexport|errexit|nounset|pipefail|xtrace|verbose|noclobber|noglob|monitor|errtrace|functrace")
_HOOK: Final = re.compile(r'"?[$`]\(?(conda|mamba|micromamba) (shell\.\w+ hook|shell hook[\w\s=-]*)\)?[`]?"?')
_MOST_STEPS: Final = 8  # arbitrary: each takes the service some seconds
_MOST_COMMANDS: Final = 5_000  # arbitrary: simple commands; functions and loops can multiply them
_MOST_NESTED: Final = 10  # arbitrary: scripts, functions and `eval` in one another
_LONGEST_WHY: Final = 200  # arbitrary: characters
_OF_A_RUN: Final = "it is known only when the job runs"


@dataclass(slots=True)
class StateFrame:
    """States collected while a function, a sourced file or a loop is read.

    Attributes:
        returns: States at each `return`.
        breaks: States at each `break`.
        rounds: States at each `continue`.
        locals: Values of variables before they became local; `_ABSENT` if there was none.
    """

    returns: list[State] = field(default_factory=list)
    breaks: list[State] = field(default_factory=list)
    rounds: list[State] = field(default_factory=list)
    locals: dict[str, object] = field(default_factory=dict)


_ABSENT: Final = object()
ReadT = TypeVar("ReadT")


class Commands(ABC):
    """A reader of simple commands.

    Args:
        folder: The job's folder as the script sees it; the current folder is the same.
        files: Text of the job's code and configs by path within the folder.
        tasks: Number of tasks of the job.
        nodes: Number of nodes of the job.
        cards: Number of cards of the job; 0 for parts of one.
    """

    def __init__(self, folder: str, files: Mapping[str, str], tasks: int, nodes: int, cards: int) -> None:
        self.files = JobFiles(posixpath.normpath(folder), files)
        self._tasks, self._nodes, self._cards = tasks, nodes, cards
        self.plans: list[Plan] = []
        self.steps: dict[ScriptStep, None] = {}
        self.asks_for_cards = False
        self.is_doubtful = False
        self._doubts = 0
        self._count = 0
        self.says_tasks = False
        self._unsettled: set[str] = set()  # variables that a trap may set at any time, or that no longer change
        self._nested = 0
        self._started: WrapperProcesses | None = None
        self._has_input = False
        self._functions: list[StateFrame] = []
        self._loops: list[StateFrame] = []

    @abstractmethod
    def read_text(self, text: str, state: State) -> None:
        """Read a script's text, as for `eval`."""

    @abstractmethod
    def read_node(self, node: Node, state: State) -> None:
        """Read a statement."""

    # -------------------------------------------------------------------------------------------- dispatch
    def command(self, simple: Simple, state: State) -> None:
        """Read one command.

        Raises:
            NotUnderstood: It may train or affect other commands in an unknown way.
        """
        self._count += 1
        if self._count > _MOST_COMMANDS:
            raise not_understood(simple.node, f"the script runs more than {_MOST_COMMANDS} commands")
        if not simple.words:
            for variable, value in simple.assigned.items():
                self.assign(variable, value, state, simple.node)
            return
        name = simple.words[0]
        if isinstance(name, Unread):
            raise not_understood(simple.node, _OF_A_RUN)
        if name in state.functions:
            with self._during(simple, state):
                self._call(simple, state)
        elif name in _BUILTINS:
            _BUILTINS[name](self, simple, state)
        else:
            self._program(simple, state)

    def _program(self, simple: Simple, state: State) -> None:
        """Read a program behind its wrappers and starters."""
        outer = self._started
        try:
            while not is_harmless(simple, self.files, state.folder):
                words = simple.known()
                name = os.path.basename(words[0])
                if name == "env" or (_ASSIGNMENT.fullmatch(words[0]) and not all(map(_ASSIGNMENT.fullmatch, words))):
                    simple = _without_assignments(simple, words[1:] if name == "env" else words)
                elif (behind := self._read_by(wrappers.unwrapped, simple, state)) is not None:
                    simple = Simple(simple.node, behind[0], {**simple.assigned, **behind[1]})
                elif (found := self._read_by(wrappers.started, simple, state)) is not None:
                    if self._started is not None or not found.words:
                        raise not_understood(simple.node, "the program that it starts is unknown")
                    self._started = found
                    self.asks_for_cards |= bool(found.cards)
                    simple = Simple(simple.node, found.words, {**simple.assigned, **found.sets})
                elif name in _SHELLS:
                    return self._shell(simple, words[1:], state)
                elif (text := self._script_text(words[0], state)) is not None:
                    return self._script(simple, text, words[1:], state, {})
                else:
                    return self._train(simple, words, state)
                if not simple.words:
                    return None
        finally:
            self._started = outer
        return None

    @staticmethod
    def _read_by(reader: Callable[..., ReadT | None], simple: Simple, state: State) -> ReadT | None:
        try:
            return reader(simple.known(), _passed(simple, state))
        except VramcastError as error:
            raise not_understood(simple.node, shorten(str(error), _LONGEST_WHY)) from None

    # -------------------------------------------------------------------------------------------- training commands
    def _train(self, simple: Simple, words: tuple[str, ...], state: State) -> None:
        if self._has_input:
            raise not_understood(simple.node, "it reads its standard input from the script")
        if state.folder is None or (folder := self.files.inside(state.folder)) is None:
            raise not_understood(simple.node, "it runs outside of the job's folder")
        environment = self._environment(simple, state)
        words = tuple(self._relative(word, folder) for word in words)
        variables = {name: self._relative(value, folder) for name, value in environment.items() if name not in _OF_THE_MACHINE}
        tasks, nodes, cards_per_node = self._started_tasks(simple)
        per_node = -(-tasks // nodes)
        try:
            with contextlib.chdir(folder):
                variables |= reading.uv_variables(words, variables)
                launched = reading.read(words, variables).world
        except (VramcastError, OSError) as error:
            why = shorten(str(error), _LONGEST_WHY) if reading.is_python(words) else "its effect is unknown"
            raise not_understood(simple.node, why) from None
        is_launched = launched.size > 1
        on_card = -(-per_node * (launched.local_size if is_launched else 1) // cards_per_node)
        on_card = max(on_card, (self._started and self._started.per_card) or 1)
        ranks = {} if is_launched or tasks == 1 else {"world_size": tasks, "nproc_per_node": per_node}
        step = ScriptStep(words, tuple(sorted(variables.items())), folder, **ranks, copies=on_card)
        self.steps[step] = None
        if len(self.steps) > _MOST_STEPS:
            raise not_understood(simple.node, f"the script has more than {_MOST_STEPS} training commands")
        self.is_doubtful |= self._doubts > 0
        others = state.concurrent()
        self.plans.append(Together((*others, step)) if others else step)

    def _started_tasks(self, simple: Simple) -> tuple[int, int, int]:
        """Return the numbers of processes, of machines, and of cards on each machine of a command."""
        per_node = max(1, self._cards // self._nodes)
        if (found := self._started) is None:
            return 1, 1, per_node
        nodes = found.nodes or self._nodes
        cards = found.cards.get("job", found.cards.get("node", 0) * nodes) or per_node * nodes
        per_card = found.per_card or ("job" in found.cards and "task" in found.cards and 1 / found.cards["task"]) or 0
        tasks = found.tasks or int(cards * per_card) or self._tasks
        if found.tasks is None and tasks == 1 and self.says_tasks:
            raise not_understood(simple.node, "an #SBATCH line asks for more tasks than the request")
        return tasks, min(nodes, tasks), max(1, min(cards // nodes, per_node))

    def _environment(self, simple: Simple, state: State) -> dict[str, str]:
        """Return the variables of a command.

        Raises:
            NotUnderstood: A variable may set a size, and is known only when the job runs.
        """
        seen = _passed(simple, state)
        for name, value in seen.items():
            if value is None and not _NO_SIZE.fullmatch(name):
                raise not_understood(simple.node, f"its variable {name} is known only when the job runs")
        return {name: value for name, value in seen.items() if isinstance(value, str)}

    def _relative(self, text: str, folder: str) -> str:
        """Return a text with the job's folder written relative to the command's folder."""
        place = posixpath.normpath(posixpath.join(self.files.base, folder))
        for path, here in ((place, "."), (self.files.base, posixpath.relpath(self.files.base, place))):
            text = re.sub(rf"(?:(?<=[:=,])|^){re.escape(path)}(?=$|[/:,])", here, text)
        return text

    # -------------------------------------------------------------------------------------------- scripts in scripts
    def _shell(self, simple: Simple, words: tuple[str, ...], state: State) -> None:
        options, rest = _shell_options(simple, words, "clirsD")
        if "c" in options and rest:
            return self._script(simple, rest[0], rest[2:], state, options)
        rest = () if options.keys() & {"c", "s"} else rest
        rest = rest[1:] if rest[:1] in (("--",), ("--login",), ("--norc",), ("--noprofile",)) else rest
        text = self.files.text(rest[0], state.folder) if rest and not rest[0].startswith("-") else None
        if text is None:
            why = "the script that it runs was not sent" if rest else "its script comes through a pipe"
            raise not_understood(simple.node, why)
        return self._script(simple, text, rest[1:], state, options)

    def _script_text(self, word: str, state: State) -> str | None:
        """Return the text of a shell script given by its path."""
        text = self.files.text(word, state.folder) if os.sep in word else None
        if text is None:
            return None
        first = text.split("\n", 1)[0]
        is_shells = any(re.search(rf"\b{shell}\b", first) for shell in _SHELLS)
        return text if (is_shells if first.startswith("#!") else word.endswith((".sh", ".bash"))) else None

    def _script(self, simple: Simple, text: str, arguments: tuple[str, ...], state: State, options: Mapping[str, bool]) -> None:
        """Read a script in another shell, which inherits exported variables and changes nothing here."""
        seen = _passed(simple, state)
        hidden = dict.fromkeys(_CHANGES_SHELLS & seen.keys())
        if hidden:
            raise not_understood(simple.node, f"{min(hidden)} changes its behaviour")
        inner = State(dict(seen), set(seen), state.folder, arguments, unsure=state.unsure, exports_all=options.get("a", False))
        self.in_shell(lambda: self._within(simple.node, text, inner), inner, state)

    def in_shell(self, read: Callable[[], None], inner: State, state: State) -> None:
        """Read a subshell; its background commands continue, and no `wait` here waits for them."""
        before = state.concurrent()
        inner.running, inner.orphans, inner.is_over = (), before, False
        functions, self._functions = self._functions, []
        loops, self._loops = self._loops, []
        read()
        self._functions, self._loops = functions, loops
        state.orphans += inner.concurrent()[len(before) :]

    def _within(self, node: Node, text: str, state: State) -> None:
        """Read the text that a command runs; an error in it is reported at the command."""
        self._nested += 1
        if self._nested > _MOST_NESTED:
            raise not_understood(node, "it is nested too deeply")
        try:
            self.read_text(text, state)
        except NotUnderstood as error:
            raise not_understood(node, f"in it, {error}") from None
        finally:
            self._nested -= 1

    def _call(self, simple: Simple, state: State) -> None:
        """Read a call of a function."""
        body = state.functions[str(simple.words[0])]
        if body is None:
            raise not_understood(simple.node, "the called function is known only when the job runs")
        before = state.arguments
        unread = any(isinstance(word, Unread) for word in simple.words)
        state.arguments = None if unread else simple.known()[1:]
        self._nested += 1
        if self._nested > _MOST_NESTED:
            raise not_understood(simple.node, "it is nested too deeply")
        self._functions.append(frame := StateFrame())
        loops, self._loops = self._loops, []
        self.read_node(body, state)
        self._loops = loops
        self._functions.pop()
        self._nested -= 1
        state.become(joined([state, *frame.returns]))
        for name, value in frame.locals.items():
            state.variables.pop(name, None)
            if value is not _ABSENT:
                state.variables[name] = value  # type: ignore[assignment]
        state.arguments = before

    # -------------------------------------------------------------------------------------------- variables
    def assign(self, name: str, value: str | tuple[str, ...] | None, state: State, node: Node) -> None:
        """Set a variable."""
        name, subscript, _ = name.partition("[")
        if name in _CHANGES_SHELLS or (name == "PS4" and re.search(r"\$\(|`|=", str(value or "="))):
            raise not_understood(node, f"{name} changes the shell's behaviour")
        if name == "PWD":
            state.folder = None
        value = None if subscript or name in self._unsettled else value
        state.set(name, value, is_exported=name.startswith("SLURM_"))

    @contextlib.contextmanager
    def _during(self, simple: Simple, state: State) -> Iterator[None]:
        """Set the variables before a function, `source` or `eval` while it runs; afterwards, they are unknown."""
        exported = set(state.exported)
        for name, value in simple.assigned.items():
            self.assign(name, value, state, simple.node)
            state.exported.add(name)
        yield
        state.variables |= dict.fromkeys(simple.assigned)
        state.exported -= simple.assigned.keys() - exported

    def make_local(self, name: str, state: State) -> None:
        """Make a variable local to the function; do nothing outside of functions."""
        if self._functions and name not in self._functions[-1].locals:
            value = state.variables.get(name, _ABSENT) if not self._doubts else None
            self._functions[-1].locals[name] = value

    @contextlib.contextmanager
    def doubt(self) -> Iterator[None]:
        """Mark the enclosed commands as possibly not run."""
        self._doubts += 1
        yield
        self._doubts -= 1

    @contextlib.contextmanager
    def collected(self) -> Iterator[list[Plan]]:
        """Collect the plans of the enclosed commands."""
        outer, self.plans = self.plans, []
        yield self.plans
        self.plans = outer

    @contextlib.contextmanager
    def given_input(self, is_given: bool) -> Iterator[None]:
        """Mark the enclosed commands as reading their standard input from the script."""
        outer, self._has_input = self._has_input, self._has_input or is_given
        yield
        self._has_input = outer

    def enter_loop(self) -> StateFrame:
        """Begin a loop."""
        self._loops.append(StateFrame())
        return self._loops[-1]

    def leave_loop(self) -> None:
        """End the loop."""
        self._loops.pop()

    # -------------------------------------------------------------------------------------------- builtins
    def _cd(self, simple: Simple, state: State) -> None:
        words = [word for word in simple.words[1:] if word not in ("-P", "-L", "--")]
        word = words[0] if words else state.variables.get("HOME") if simple.words[0] == "cd" else None
        is_known = isinstance(word, str) and word[:1] not in ("-", "+") and len(words) < 2 and simple.words[0] != "popd"
        if is_known and (state.folder is not None or str(word).startswith("/")):
            state.folder = posixpath.normpath(posixpath.join(state.folder or "/", str(word)))
        else:
            state.folder = None

    def _source(self, simple: Simple, state: State) -> None:
        word = simple.words[1] if len(simple.words) > 1 else None
        text = self.files.text(word, state.folder) if isinstance(word, str) else None
        if text is None:
            said = word.text if isinstance(word, Unread) else word or ""
            if os.path.basename(said.strip("\"'")) in _SOURCED:
                return
            raise not_understood(simple.node, "the file that it reads was not sent")
        before = state.arguments
        if len(simple.words) > 2:
            state.arguments = simple.known()[2:]
        with self._during(simple, state):
            self._functions.append(frame := StateFrame())
            self._within(simple.node, text, state)
            self._functions.pop()
            state.become(joined([state, *frame.returns]))
        state.arguments = before

    def _eval(self, simple: Simple, state: State) -> None:
        said = " ".join(word.text for word in simple.words[1:] if isinstance(word, Unread))
        if len(simple.words) == 2 and _HOOK.fullmatch(said):
            return
        with self._during(simple, state):
            self._within(simple.node, " ".join(simple.known()[1:]), state)

    def _exec(self, simple: Simple, state: State) -> None:
        if len(simple.words) > 1:
            self._program(simple, state)
            state.is_over = True

    def _set(self, simple: Simple, state: State) -> None:
        options, rest = _shell_options(simple, simple.words[1:])
        state.exports_all = options.get("a", state.exports_all)
        if rest:
            is_known = rest[0] == "--" and not any(isinstance(word, Unread) for word in rest)
            state.arguments = tuple(str(word) for word in rest[1:]) if is_known else None

    def _shift(self, simple: Simple, state: State) -> None:
        by = decimal(simple.known()[1]) if len(simple.words) > 1 else 1
        state.arguments = None if state.arguments is None or by is None or by > len(state.arguments) else state.arguments[by:]

    def _forget(self, simple: Simple, state: State) -> None:
        """Read a builtin that sets variables to unknown values: `read`, `mapfile`, `getopts`, `let`."""
        names = [name for word in simple.known()[1:] for name in re.findall(r"[A-Za-z_]\w*", word)]
        for name in (*names, "REPLY", "MAPFILE"):
            self.assign(name, None, state, simple.node)

    def _printf(self, simple: Simple, state: State) -> None:
        words = [word for word in simple.words[1:] if isinstance(word, str)]
        if words and words[0].startswith("-v"):
            self.assign(words[0][2:] or simple.known()[2], None, state, simple.node)

    def _declare(self, simple: Simple, state: State) -> None:
        """Read `export` and similar builtins if the grammar parses them as program names."""
        for word in simple.known()[1:]:
            name, equals, value = word.partition("=")
            if not word.startswith("-"):
                if equals:
                    self.assign(name, value, state, simple.node)
                state.exported |= {name} if simple.words[0] == "export" else set()
                self._unsettled |= {name} if simple.words[0] == "readonly" else set()
            elif word != "-x":
                raise not_understood(simple.node, f"its option {word} is not supported")

    def _unset(self, simple: Simple, state: State) -> None:
        names = simple.known()[1:]
        for name in (one for one in names if not one.startswith("-")):
            if "-f" in names or ("-v" not in names and name in state.functions and name not in state.variables):
                state.functions.pop(name, None)
                continue
            self.assign(name, None, state, simple.node)
            reappears = any(name in frame.locals for frame in self._functions[:-1])  # that of a caller
            if not reappears and "[" not in name and name not in self._unsettled:
                del state.variables[name]
                state.exported.discard(name)

    def _wait(self, simple: Simple, state: State) -> None:
        if len(simple.words) == 1:
            state.wait()
        else:
            self.is_doubtful = True  # its command counts as running until the next `wait` for all

    def _disown(self, simple: Simple, state: State) -> None:
        state.orphans, state.running = state.concurrent(), ()

    def _leave(self, simple: Simple, state: State) -> None:
        word, *rest = simple.words
        frames = self._functions if word == "return" else self._loops
        if word != "exit":
            if not frames or (rest and word != "return"):
                raise not_understood(simple.node, "the loop or function that it leaves is unknown")
            left = {"return": frames[-1].returns, "break": frames[-1].breaks, "continue": frames[-1].rounds}[str(word)]
            left.append(state.copy())
        state.is_over = True

    def _trap(self, simple: Simple, state: State) -> None:
        words = [word for word in simple.words[1:] if word != "--"]
        if not words or words[0] in ("-", "", "-p", "-l"):
            return
        text = Simple(simple.node, tuple(words[:1])).known()[0]
        inner = state.copy()
        inner.folder = None  # it runs at another time: training in it is not understood
        with self.doubt():
            self.in_shell(lambda: self._within(simple.node, text, inner), inner, state)
        if set(words[1:]) <= {"EXIT", "0"}:
            return
        if (inner.functions, inner.exports_all, inner.arguments) != (state.functions, state.exports_all, state.arguments):
            raise not_understood(simple.node, "it changes the shell at a time that is known only when the job runs")
        inner.folder, inner.is_over = inner.folder or state.folder, False
        met = joined([state, inner])
        self._unsettled |= {name for name, value in met.variables.items() if value != state.variables.get(name, _ABSENT)}
        state.become(met)


def _passed(simple: Simple, state: State) -> dict[str, str | None]:
    """Return the variables of a command's environment."""
    values = {name: state.variables[name] for name in state.exported if name in state.variables}
    known = {name: value if isinstance(value, str) and name not in state.unsure else None for name, value in values.items()}
    return {**known, **simple.assigned}


def _shell_options(simple: Simple, words: Sequence[str | Unread], more: str = "") -> tuple[dict[str, bool], tuple[Any, ...]]:
    """Return the options at the beginning of `set` or `bash` by letter, whether each is on, and the words after them."""
    found: dict[str, bool] = {}
    rest = tuple(words)
    while rest and isinstance(word := rest[0], str) and word[:1] in ("-", "+") and len(word) > 1 and word[1] != "-":
        names = rest[1:2] if "o" in word else ()
        rest = rest[1 + len(names) :]
        if not set(word[1:]) <= _LETTERS.union(more) or not all(_NAMES.fullmatch(str(name)) for name in names):
            raise not_understood(simple.node, f"{word} changes the shell's behaviour")
        found |= dict.fromkeys(word[1:] + "a" * ("allexport" in names), word[0] == "-")
    if rest and isinstance(rest[0], Unread):
        raise not_understood(simple.node, _OF_A_RUN)
    return found, rest


def _without_assignments(simple: Simple, words: tuple[str, ...]) -> Simple:
    """Return a command without the `NAME=value` words before it."""
    variables = dict(simple.assigned)
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        variables[match[1]] = match[2]
        words = words[1:]
    if words and words[0].startswith("-"):
        raise not_understood(simple.node, f"env {words[0]} is not supported")
    return Simple(simple.node, words, variables)


_BUILTINS: Final[dict[str, Callable[[Commands, Simple, State], None]]] = {
    "cd": Commands._cd, "pushd": Commands._cd, "popd": Commands._cd, "source": Commands._source, ".": Commands._source,
    "eval": Commands._eval, "exec": Commands._exec, "set": Commands._set, "shift": Commands._shift, "read": Commands._forget,
    "mapfile": Commands._forget, "readarray": Commands._forget, "getopts": Commands._forget, "let": Commands._forget,
    "printf": Commands._printf, "export": Commands._declare, "readonly": Commands._declare, "declare": Commands._declare,
    "local": Commands._declare, "typeset": Commands._declare, "unset": Commands._unset, "wait": Commands._wait,
    "disown": Commands._disown, "exit": Commands._leave, "return": Commands._leave, "break": Commands._leave,
    "continue": Commands._leave, "trap": Commands._trap,
}  # fmt: skip
