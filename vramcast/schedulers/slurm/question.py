"""The questions that a batch script is: one for each job it names or trains."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from vramcast.core.errors import NoAnswer
from vramcast.core.units import MIB
from vramcast.schedulers.slurm.batch_script import BatchScript, Trained, read_script
from vramcast.schedulers.slurm.options import Asked

_MOST_COMMANDS: Final = 3  # arbitrary: of more the largest is not found in two seconds
_SCRIPT_BYTES: Final = 4 << 20  # spec: slurm.conf(5), max_script_size
_ENDINGS: Final = frozenset({".py", ".json", ".yaml", ".yml", ".toml", ".txt", ".cfg", ".ini"})
_MOST_BYTES: Final = 4 * MIB  # arbitrary: code and configs; what is larger is data
_MOST_FILE_BYTES: Final = MIB  # arbitrary
_MOST_FILES: Final = 500  # arbitrary
_DEEPEST: Final = 5  # arbitrary: folders below the job's
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist", "wandb", "venv", "env"})


def script_of(kind: str, options: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> BatchScript | None:
    """Return what is submitted; None: it cannot be read (a script which comes through a pipe is Slurm's alone).

    Args:
        kind: `sbatch` or `srun`.
        options: As cli_filter has them.
        folder: In which it is submitted.
        environment: Of the submission.
    """
    said = options.get("argv")
    words = tuple(str(word) for word in said) if isinstance(said, list) else ()
    place = Path(os.path.normpath(folder / str(options.get("chdir") or "")))
    if kind == "srun":
        return read_script(f"srun {shlex.join(words)}", (), place, environment) if words else None
    if options.get("wrap"):
        return read_script(str(options["wrap"]), (), place, environment)
    if not words:
        return None
    try:
        with open(folder / words[0], "rb") as file:
            text = file.read(_SCRIPT_BYTES).decode(errors="replace")
    except OSError:
        return None
    return read_script(text, words[1:], place, environment)


def questions(script: BatchScript, asked: Asked, folder: Path) -> list[dict[str, Any]]:
    """Return the bodies of the questions about a job, without the card.

    Args:
        script: What it trains.
        asked: What it asks for.
        folder: In which it runs.
    Raises:
        NoAnswer: it names no job and trains nothing that is understood.
    """
    if script.named is not None:
        return [dict(script.named)]
    if script.unknown:
        raise NoAnswer(f"a line of the script is known only when it runs: {script.unknown[0][:60]}")
    if not script.commands:
        raise NoAnswer("the script has no training command and no #VRAMCAST line")
    if len(script.commands) > _MOST_COMMANDS:
        raise NoAnswer(f"the script has {len(script.commands)} Python commands: name the job in a #VRAMCAST line")
    files = _code_in(folder)
    return [_question(one, asked, folder, files) for one in script.commands]


def _question(trained: Trained, asked: Asked, folder: Path, files: Mapping[str, str]) -> dict[str, Any]:
    words, place = list(trained.words), os.path.normpath(trained.folder)
    inside = os.path.relpath(place, folder)
    if inside.startswith(".."):
        raise NoAnswer(f"the command runs in {place}, outside of the job's folder")
    if inside != ".":
        files = {name[len(inside) + 1 :]: text for name, text in files.items() if PurePosixPath(name).is_relative_to(inside)}
    words = [os.path.relpath(word, place) if Path(word).is_relative_to(place) else word for word in words]
    body: dict[str, Any] = {"command": words, "files": dict(files), "environment": dict(trained.environment)}
    tasks = trained.tasks or (asked.tasks if trained.by_srun else 1)
    if tasks > 1 and PurePosixPath(words[0]).name.startswith("python"):
        body |= {"world_size": tasks, "nproc_per_node": max(1, tasks // asked.nodes)}
    return body


def _code_in(folder: Path) -> dict[str, str]:
    """Return the text of the code and the configs in a folder and below, by relative path; the data stays."""
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
            raise NoAnswer(f"{folder} holds more than {_MOST_FILES} files or {_MOST_BYTES // MIB} MiB of code: name the model")
    return found


def _paths(folder: Path) -> Iterator[Path]:
    """Yield files which may be code; links out of the folder are not followed."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        deep = len(here.relative_to(folder).parts) >= _DEEPEST
        folders[:] = [] if deep else sorted(one for one in folders if one not in _PASSED_OVER and not one.startswith("."))
        for name in sorted(names):
            path = here / name
            if path.suffix in _ENDINGS and not path.is_symlink() and path.is_file():
                yield path
