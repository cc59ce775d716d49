"""The known state at a point of a shell script: variables, functions, folder, background commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from vramcast.cluster.shell.plan import Plan

# A variable: text, the elements of an array, or None if its value is known only when the job runs.
Value: TypeAlias = "str | tuple[str, ...] | None"
# Variables set by Slurm, Bash and the machine: unknown before the job runs, even whether they are set.
_SET_BY_OTHERS: Final = (
    "SLURM", "SBATCH_", "SRUN_", "CUDA", "ROCR_", "GPU_", "BASH", "PMI", "OMPI_", "CONDA", "LMOD", "SINGULARITY", "APPTAINER",
)  # fmt: skip
_KNOWN_LATER: Final = frozenset({
    "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "PPID", "UID", "EUID", "LINENO", "HOSTNAME", "HOSTTYPE",
    "OSTYPE", "MACHTYPE", "TMPDIR", "OLDPWD", "REPLY", "PIPESTATUS", "OPTARG", "OPTIND", "SHLVL", "FUNCNAME", "_",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "VIRTUAL_ENV", "SHELL", "USER", "LOGNAME", "HOME", "PATH", "LANG",
})  # fmt: skip
_SEARCH_PATHS: Final = frozenset({"PYTHONPATH", "LD_LIBRARY_PATH"})  # a module may set them; they change no size


class Unknown(Exception):
    """A value that is known only when the job runs."""


@dataclass(frozen=True, slots=True)
class BackgroundCommand:
    """A background command.

    Attributes:
        plan: All of its training.
        left: The part that still runs after a `wait`.
    """

    plan: Plan
    left: tuple[Plan, ...] = ()


@dataclass(slots=True)
class State:
    """The state at a point of a script.

    Attributes:
        variables: Values by name; an absent variable is not set by any known command.
        exported: Names of the exported variables.
        folder: The current folder; None if unknown.
        arguments: `$1`, `$2` and so on; None if unknown.
        functions: Bodies by name; None if a function has several possible bodies.
        running: Background commands that `wait` waits for.
        orphans: Background commands that `wait` does not wait for.
        unsure: Names of variables that only some of the ways to this point export.
        exports_all: Whether assigned variables are exported.
        is_over: Whether the script cannot continue past this point.
    """

    variables: dict[str, Value]
    exported: set[str]
    folder: str | None
    arguments: tuple[str, ...] | None
    functions: dict[str, Any] = field(default_factory=dict)
    running: tuple[BackgroundCommand, ...] = ()
    orphans: tuple[Plan, ...] = ()
    unsure: frozenset[str] = frozenset()
    exports_all: bool = False
    is_over: bool = False

    def copy(self) -> State:
        """Return an independent copy, for a branch or a subshell."""
        return replace(self, variables=dict(self.variables), exported=set(self.exported), functions=dict(self.functions))

    def become(self, other: State) -> None:
        """Replace this state by another."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def concurrent(self) -> tuple[Plan, ...]:
        """Return the background commands that run together with the next command."""
        return (*self.orphans, *(one.plan for one in self.running))

    def wait(self) -> None:
        """Wait for all background commands of this shell."""
        self.orphans += tuple(plan for one in self.running for plan in one.left)
        self.running = ()

    def value(self, name: str) -> str | tuple[str, ...]:
        """Return a variable's value, "" if it is certainly not set.

        Raises:
            Unknown: The value is known only when the job runs.
        """
        found = self.folder if name == "PWD" else self.variables.get(name, "" if name in _SEARCH_PATHS else None)
        if found is None:
            raise Unknown(name)
        return found

    def is_unset(self, name: str) -> bool:
        """Return whether a variable is certainly not set."""
        return name not in self.variables and name not in _KNOWN_LATER and not name.startswith(_SET_BY_OTHERS)

    def set(self, name: str, value: Value, *, is_exported: bool = False) -> None:
        """Set a variable."""
        self.variables[name] = value
        if is_exported or self.exports_all:
            self.exported.add(name)


def joined(states: Iterable[State]) -> State:
    """Return the state on which several branches agree."""
    every = list(states)
    ways = [one for one in every if not one.is_over]
    if not ways:
        return replace(every[0].copy(), is_over=True)
    first = ways[0].copy()
    for other in ways[1:]:
        first.variables = _agreed(first.variables, other.variables)
        first.unsure |= other.unsure | (first.exported ^ other.exported)
        first.exported |= other.exported
        first.functions = _agreed(first.functions, other.functions)
        first.folder = first.folder if first.folder == other.folder else None
        first.arguments = first.arguments if first.arguments == other.arguments else None
        first.exports_all |= other.exports_all
        first.running += tuple(one for one in other.running if not _has(first.running, one))
        first.orphans += tuple(one for one in other.orphans if not _has(first.orphans, one))
    return first


_ABSENT: Final = object()


def _agreed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings; a name with different values becomes None."""
    names = {**one, **other}
    return {name: one[name] if one.get(name, _ABSENT) == other.get(name, _ABSENT) else None for name in names}


def _has(some: tuple[Any, ...], one: Any) -> bool:
    return any(one is other for other in some)
