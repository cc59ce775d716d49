"""The request for a submission: the job that its script names, or the script with the code around it."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core.text import encodable
from vramcast.core.units import MIB
from vramcast.schedulers.answer import Unanswerable
from vramcast.schedulers.slurm.job_environment import job_environment
from vramcast.schedulers.slurm.options import Asked
from vramcast.schedulers.slurm.script_marks import Marks

_SCRIPT_BYTES: Final = 4 << 20  # spec: slurm.conf(5), max_script_size
_ENDINGS: Final = frozenset({".py", ".json", ".yaml", ".yml", ".toml", ".txt", ".cfg", ".ini", ".sh", ".bash"})
_MOST_BYTES: Final = 4 * MIB  # arbitrary: code and configs; larger files are data
_MOST_FILE_BYTES: Final = MIB  # arbitrary
_MOST_FILES: Final = 500  # arbitrary
_DEEPEST: Final = 5  # arbitrary: folders below the job's
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist", "wandb", "venv", "env"})


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission.

    Attributes:
        text: Text of the script.
        arguments: Arguments of the script.
        folder: Folder in which the job runs.
    """

    text: str
    arguments: tuple[str, ...]
    folder: Path


def submission_of(kind: str, options: Mapping[str, Any], folder: Path) -> Submission | None:
    """Return the submission; None: it cannot be read (only Slurm reads a script from a pipe).

    Args:
        kind: `sbatch` or `srun`.
        options: The options in cli_filter's form.
        folder: Folder in which it is submitted.
    """
    said = options.get("argv")
    words = tuple(str(word) for word in said) if isinstance(said, list) else ()
    place = Path(os.path.normpath(folder / str(options.get("chdir") or "")))
    if kind == "srun":
        return Submission(f"srun {shlex.join(words)}", (), place) if words else None
    if options.get("wrap"):
        return Submission(str(options["wrap"]), (), place)
    text = _regular_file(folder / words[0]) if words else None
    return None if text is None else Submission(text, words[1:], place)


def _regular_file(path: Path) -> str | None:
    """Return the text of a regular file, else None: a pipe would wait for its writer, and a device may have no end."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return file.read(_SCRIPT_BYTES).decode(errors="replace") if is_regular else None
    except (OSError, ValueError):
        return None


def question(
    submission: Submission, marks: Marks, asked: Asked, submitted: Mapping[str, str], export: str
) -> tuple[str, dict[str, Any]]:
    """Return the path for the request about a job, and its body without the card.

    Args:
        submission: The job.
        marks: The `#VRAMCAST` lines of its script.
        asked: The resources it requests.
        submitted: The environment of the submission.
        export: The option `--export`.
    Raises:
        NoAnswer: There is too much code around the script.
    """
    if marks.named is not None:
        return "/v1/checks", dict(marks.named)
    files = _code_in(submission.folder)
    environment = job_environment(submitted, export, (submission.text, *submission.arguments, *files.values()))
    body = {
        "script": encodable(submission.text),
        "arguments": [encodable(word) for word in submission.arguments],
        "folder": encodable(str(submission.folder)),
        "environment": environment,
        "files": files,
        "tasks": asked.tasks,
        "nodes": asked.nodes,
        "cards": asked.cards,
    }
    return "/v1/scripts", body


def _code_in(folder: Path) -> dict[str, str]:
    """Return the text of code and configs in a folder and below, by relative path, without data."""
    found: dict[str, str] = {}
    rest = _MOST_BYTES
    for path in _paths(folder):
        try:
            if path.stat().st_size > _MOST_FILE_BYTES:
                continue
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        found[str(path.relative_to(folder))] = text
        rest -= len(text)
        if rest < 0 or len(found) > _MOST_FILES:
            raise Unanswerable(
                f"{folder} holds more than {_MOST_FILES} files or {_MOST_BYTES // MIB} MiB of code: name the model in a "
                "#VRAMCAST line instead"
            )
    return found


def _paths(folder: Path) -> Iterator[Path]:
    """Yield files that may be code; links that leave the folder are not followed."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        deep = len(here.relative_to(folder).parts) >= _DEEPEST
        folders[:] = [] if deep else sorted(one for one in folders if one not in _PASSED_OVER and not one.startswith("."))
        for name in sorted(names):
            path = here / name
            if path.suffix in _ENDINGS and not path.is_symlink() and path.is_file():
                yield path
