"""The request for a submission: the job that its script names, or the script with the code around it."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.cluster.answer import Unanswerable
from vramcast.cluster.slurm.job_environment import SECRET, job_environment
from vramcast.cluster.slurm.options import RequestedResources
from vramcast.cluster.slurm.script_marks import Marks
from vramcast.core.text import encodable
from vramcast.core.units import MIB

_SCRIPT_BYTES: Final = 4 << 20  # spec: slurm.conf(5), max_script_size
_ENDINGS: Final = frozenset(
    {".py", ".json", ".yaml", ".yml", ".toml", ".txt", ".cfg", ".ini", ".sh", ".bash"}
    | {".env", ".conf", ".gin", ".json5", ".jsonc", ".jsonnet", ".libsonnet", ".properties", ".sed", ".awk"}
)
_MOST_BYTES: Final = 4 * MIB  # arbitrary: code and configs; larger files are data
_MOST_FILE_BYTES: Final = MIB  # arbitrary
_MOST_FILES: Final = 500  # arbitrary
_DEEPEST: Final = 8  # arbitrary: folders below the job's
# Outputs of trainings, and data: a job without them fails, or begins anew.
_DATA: Final = re.compile(
    r"\.(pth?|ckpt|bin|safetensors|np[yz]|h5|pkl|parquet|[ct]sv|jsonl|tar|gz|zip|png|jpe?g|log|out|err|lock)$"
)
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "wandb"})
_NAME: Final = re.compile(r"[\w.-]+")
# A variable in `.env`; a value in quotes may have several lines.
_VARIABLE: Final = re.compile(r"""^(\s*(?:export\s+)?(\w+)\s*=)\s*(?:'[^']*'|"[^"]*"|.*)""", re.MULTILINE)


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
    submission: Submission, marks: Marks, asked: RequestedResources, submitted: Mapping[str, str], export: str
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the path for the request about a job, its body without the card, and files that the job names but are not sent.

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
        return "/v1/checks", dict(marks.named), ()
    said = (submission.text, *submission.arguments)
    found = _code_in(submission.folder, said)
    files = {name: text for name, text in found.items() if text is not None}
    environment = job_environment(submitted, export, (*said, *files.values()))
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
    return "/v1/scripts", body, tuple(sorted(found.keys() - files.keys()))


def _code_in(folder: Path, said: Iterable[str] = ()) -> dict[str, str | None]:
    """Return the text of a job's code and configs by relative path; None: the job names the file, but it cannot be sent.

    Args:
        folder: The job's folder.
        said: The script and its arguments, which may name other files.
    """
    named = {name for text in said for name in _NAME.findall(text)}
    found: dict[str, str | None] = {}
    unsent: list[Path] = []
    rest, root = _MOST_BYTES, os.path.realpath(folder)
    for path in sorted(_paths(folder), key=_is_other):  # code comes first, because it names other files
        text = _text(path, root) if path.name in named or not _is_other(path) else None
        if text is None:
            unsent.append(path)
            continue
        named.update(_NAME.findall(text))
        found[str(path.relative_to(folder))] = text
        rest -= len(text)
        if rest < 0 or len(found) > _MOST_FILES:
            raise Unanswerable(
                f"{folder} holds more than {_MOST_FILES} files or {_MOST_BYTES // MIB} MiB of code: name the model in a "
                "#VRAMCAST line instead"
            )
    return found | {str(one.relative_to(folder)): None for one in unsent if one.name in named and not _DATA.search(one.name)}


def _text(path: Path, root: str) -> str | None:
    """Return the text of a file, without the values of secrets; None: it is too large, no text, or elsewhere."""
    try:
        is_near = os.path.realpath(path).startswith(f"{root}/") and path.is_file() and path.stat().st_size <= _MOST_FILE_BYTES
        text = path.read_text(encoding="utf-8") if is_near else "\0"
    except (OSError, UnicodeDecodeError):
        return None
    if ".env" in path.name:
        text = _VARIABLE.sub(lambda line: line[1] if SECRET.fullmatch(line[2]) else line[0], text)
    return None if "\0" in text else text


def _is_other(path: Path) -> bool:
    return path.suffix not in _ENDINGS and not path.name.startswith(".env")


def _paths(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, without caches and virtual environments."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        deep = len(here.relative_to(folder).parts) >= _DEEPEST
        for link in (
            here / one for one in folders if os.path.islink(here / one)
        ):  # it may lead to data: only code in it counts
            yield from (path for path in link.glob("*") if not _is_other(path))
        folders[:] = [] if deep else sorted(one for one in folders if _may_hold_code(here / one))
        yield from (here / name for name in sorted(names))


def _may_hold_code(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") and folder.name not in (".hydra", ".config")
    return folder.name not in _PASSED_OVER and not is_hidden and not os.path.exists(folder / "pyvenv.cfg")
