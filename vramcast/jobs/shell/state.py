"""What is known at one place of a shell script: variables, functions, the folder, what runs in the background."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from vramcast.jobs.shell.plan import Plan

# A variable: text, the elements of an array, or None where its value is known only when the job runs.
Value: TypeAlias = "str | tuple[str, ...] | None"
# Variables that Slurm, Bash and the machine set; before a job runs nobody knows them, nor whether they are set.
_SET_BY_OTHERS: Final = (
    "SLURM", "SBATCH_", "SRUN_", "CUDA", "ROCR_", "GPU_", "BASH", "PMI", "OMPI_", "CONDA", "LMOD", "SINGULARITY", "APPTAINER",
)  # fmt: skip
_KNOWN_LATER: Final = frozenset({
    "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "PPID", "UID", "EUID", "LINENO", "HOSTNAME", "HOSTTYPE",
    "OSTYPE", "MACHTYPE", "TMPDIR", "OLDPWD", "REPLY", "PIPESTATUS", "OPTARG", "OPTIND", "SHLVL", "FUNCNAME", "_",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "VIRTUAL_ENV", "SHELL", "USER", "LOGNAME", "HOME", "PATH", "LANG",
})  # fmt: skip
_SEARCH_PATHS: Final = frozenset({"PYTHONPATH", "LD_LIBRARY_PATH"})  # a module may set them, and they change no size


class Unknown(Exception):
    """A value that is known only when the job runs."""


@dataclass(frozen=True, slots=True)
class Running:
    """What was put in the background.

    Attributes:
        plan: All of it.
        left: What of it still runs after a `wait`.
    """

    plan: Plan
    left: tuple[Plan, ...] = ()


@dataclass(slots=True)
class State:
    """One place of a script.

    Attributes:
        variables: By name; one that is absent was not set by anybody who is known.
        exported: Names of those that a command sees.
        folder: The current one; None: not known.
        arguments: `$1` and on; None: not known.
        functions: By name, their bodies; None: it is one of several.
        running: What `wait` waits for.
        orphans: What runs on whatever is waited for.
        exports_all: Whether what is set is exported.
        is_over: Nothing after this place is reached.
    """

    variables: dict[str, Value]
    exported: set[str]
    folder: str | None
    arguments: tuple[str, ...] | None
    functions: dict[str, Any] = field(default_factory=dict)
    running: tuple[Running, ...] = ()
    orphans: tuple[Plan, ...] = ()
    exports_all: bool = False
    is_over: bool = False

    def copy(self) -> State:
        """Return the same, to be changed alone: by a branch, or by a shell of its own."""
        return replace(self, variables=dict(self.variables), exported=set(self.exported), functions=dict(self.functions))

    def become(self, other: State) -> None:
        """Take over another place's state."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def beside(self) -> tuple[Plan, ...]:
        """Return what runs beside the next command."""
        return (*self.orphans, *(one.plan for one in self.running))

    def wait(self) -> None:
        """Wait for all that this shell put in the background."""
        self.orphans += tuple(plan for one in self.running for plan in one.left)
        self.running = ()

    def value(self, name: str) -> str | tuple[str, ...]:
        """Return a variable's value, "" for one that is certainly not set.

        Raises:
            Unknown: it is known only when the job runs.
        """
        found = self.folder if name == "PWD" else self.variables.get(name, "" if name in _SEARCH_PATHS else None)
        if found is None:
            raise Unknown(name)
        return found

    def is_unset(self, name: str) -> bool:
        """Whether a variable is certainly not set."""
        return name not in self.variables and name not in _KNOWN_LATER and not name.startswith(_SET_BY_OTHERS)

    def set(self, name: str, value: Value, *, is_exported: bool = False) -> None:
        """Give a variable a value."""
        self.variables[name] = value
        if is_exported:
            self.exported.add(name)


def joined(states: Iterable[State]) -> State:
    """Return what is known where several ways through a script meet: what they agree on."""
    every = list(states)
    ways = [one for one in every if not one.is_over]
    if not ways:
        return replace(every[0].copy(), is_over=True)
    first = ways[0].copy()
    for other in ways[1:]:
        first.variables = _agreed(first.variables, other.variables)
        for name in first.exported ^ other.exported:
            first.variables[name] = None
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
    """Return what two mappings say of each name: None where it is not the same."""
    names = {**one, **other}
    return {name: one[name] if one.get(name, _ABSENT) == other.get(name, _ABSENT) else None for name in names}


def _has(some: tuple[Any, ...], one: Any) -> bool:
    return any(one is other for other in some)
