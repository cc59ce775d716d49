"""Exit status of a job, from the variables that Slurm sets for the epilog, and whether its output reports a full card."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, Literal, TypeAlias

from vramcast.cluster.slurm.comment_field import Ticket
from vramcast.core.checks import decimal

Outcome: TypeAlias = Literal["finished", "out_of_memory", "unknown"]
_READ_BYTES: Final = 256 * 1024  # arbitrary: a traceback is at the end; several ranks write several
# spec: torch.OutOfMemoryError's message, torch 2.6 to 2.11; JAX and TensorFlow use other messages
_FULL: Final = re.compile(rb"CUDA out of memory\. Tried to allocate ")
_PATTERN: Final = re.compile(r"%([0-9]*)([%AajJNnstuxb])")
_WIDEST: Final = 10  # spec: sbatch(1): "the specified zero padding ... with a maximum of 10"
_LONGEST_PATH: Final = 4096  # spec: Linux, PATH_MAX


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A finished job.

    Attributes:
        id: Slurm's job id.
        restarts: Number of earlier requeues.
        ticket: Its estimate; None: it was submitted without one.
        exit_code: Exit code; 0: success.
        uid: User id of its owner.
        gid: Group id of its owner.
        outputs: Files that it wrote.
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
        """The id of this run of the job; a requeued job has a new one."""
        return f"{self.id}.{self.restarts}"


def read_environment(environment: Mapping[str, str]) -> EndedJob | None:
    """Return the job that an epilog with these variables belongs to; None: there is none.

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
    """Return the outcome of a job. The caller must have the rights of the job's user, who chose the files."""
    if job.exit_code == 0:
        return "finished"
    return "out_of_memory" if any(_says_full(path) for path in job.outputs) else "unknown"


def _exit_code(environment: Mapping[str, str]) -> int:
    """Return the job's exit code; a job without one from Slurm counts as failed."""
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
    """Return whether the end of a file has torch's message; a pattern with an unknown part needs a single match."""
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
