"""How a job ended, as Slurm's epilog is told it in variables; and whether its own output says that the card was full."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, Literal, TypeAlias

from vramcast.core.checks import decimal
from vramcast.schedulers.slurm.comment_field import Ticket

Outcome: TypeAlias = Literal["finished", "out_of_memory", "unknown"]
_READ_BYTES: Final = 256 * 1024  # arbitrary: a traceback is at the end; several ranks write several
# spec: torch.OutOfMemoryError's message, torch 2.6 to 2.11; JAX and TensorFlow say theirs in another way
_FULL: Final = re.compile(rb"CUDA out of memory\. Tried to allocate ")
_PATTERN: Final = re.compile(r"%([0-9]*)([%AajJNnstuxb])")
_WIDEST: Final = 10  # spec: sbatch(1): "the specified zero padding ... with a maximum of 10"
_LONGEST_PATH: Final = 4096  # spec: Linux, PATH_MAX


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One job, at its end.

    Attributes:
        id: Slurm's.
        restarts: How often it was requeued before.
        ticket: Its estimate; None: it was submitted without one.
        exit_code: 0: it ended well.
        uid: Its user's.
        gid: Its user's.
        outputs: Files which it wrote.
    """

    id: str
    restarts: int
    ticket: Ticket | None
    exit_code: int
    uid: int
    gid: int
    outputs: tuple[Path, ...]

    @property
    def attempt(self) -> str:
        """The id of this run of the job: a requeued one has another."""
        return f"{self.id}.{self.restarts}"


def read_environment(environment: Mapping[str, str]) -> EndedJob | None:
    """Return the job whose epilog has these variables; None: there is none.

    # spec: slurm.schedmd.com/prolog_epilog.html
    """
    job = environment.get("SLURM_JOB_ID", "")
    uid, gid = environment.get("SLURM_JOB_UID", ""), environment.get("SLURM_JOB_GID", "")
    if decimal(job) is None or (of_user := decimal(uid)) is None:
        return None
    return EndedJob(
        job,
        _number(environment.get("SLURM_JOB_RESTART_COUNT", "")),
        Ticket.found_in(environment.get("SLURM_JOB_COMMENT", "")),
        _exit_code(environment),
        of_user,
        of_user if (of_group := decimal(gid)) is None else of_group,
        _outputs(environment),
    )


def outcome_of(job: EndedJob) -> Outcome:
    """Return how a job ended. The caller must have the job's user's rights: the files are that user's choice."""
    if job.exit_code == 0:
        return "finished"
    return "out_of_memory" if any(_says_full(path) for path in job.outputs) else "unknown"


def _exit_code(environment: Mapping[str, str]) -> int:
    """Return the job's exit code; a job of which Slurm does not say it is taken for failed."""
    said = environment.get("SLURM_JOB_EXIT_CODE", "")
    derived = _number(environment.get("SLURM_JOB_DERIVED_EC", "0"))
    code = decimal(said)
    return (code or derived) if code is not None else 1


def _outputs(environment: Mapping[str, str]) -> tuple[Path, ...]:
    folder = Path(environment.get("SLURM_JOB_WORK_DIR", "/"))
    said = [environment.get(name, "") for name in ("SLURM_JOB_STDERR", "SLURM_JOB_STDOUT")]
    array = environment.get("SLURM_ARRAY_TASK_ID")
    default = "slurm-%A_%a.out" if array else "slurm-%j.out"
    paths = [_path(text, environment) for text in dict.fromkeys(one for one in (*said, "" if any(said) else default) if one)]
    return tuple(folder / path for path in paths if path)


def _path(pattern: str, environment: Mapping[str, str]) -> str:
    """Return the file of a pattern like `%x-%j.out`. # spec: sbatch(1), filename pattern"""
    known = {
        "j": environment.get("SLURM_JOB_ID", ""),
        "J": environment.get("SLURM_JOB_ID", ""),
        "A": environment.get("SLURM_ARRAY_JOB_ID") or environment.get("SLURM_JOB_ID", ""),
        "a": environment.get("SLURM_ARRAY_TASK_ID", ""),
        "u": environment.get("SLURM_JOB_USER", ""),
        "x": environment.get("SLURM_JOB_NAME", "*"),
        "N": environment.get("SLURMD_NODENAME", ""),
        "n": "0", "t": "0", "s": "batch", "%": "%", "b": "*",
    }  # fmt: skip

    def value(match: re.Match[str]) -> str:
        found = known[match[2]]
        width = decimal(match[1][:_WIDEST]) or 0
        return found.zfill(min(width, _WIDEST)) if decimal(found) is not None else found

    return _PATTERN.sub(value, pattern) if len(pattern) <= _LONGEST_PATH else ""


def _says_full(path: Path) -> bool:
    """Whether the end of a file has torch's message; a pattern with an unknown part takes the only file that matches."""
    try:
        if "*" in path.name:
            found = [one for one in os.scandir(path.parent) if fnmatch(one.name, path.name)]
            if len(found) != 1:
                return False
            path = Path(found[0].path)
        # a pipe would wait for its writer
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                return False
            file.seek(max(0, about.st_size - _READ_BYTES))
            return bool(_FULL.search(file.read(_READ_BYTES)))
    except (OSError, ValueError):  # a name with a NUL
        return False


def _number(text: str) -> int:
    return decimal(text) or 0
