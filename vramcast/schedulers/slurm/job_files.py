"""The files of a training command which the service needs to run it: the code around it, not the data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vramcast.core.errors import NoAnswer
from vramcast.core.units import MIB

_ENDINGS: Final = frozenset({".py", ".json", ".yaml", ".yml", ".toml", ".txt", ".cfg", ".ini"})
_MOST_BYTES: Final = 4 * MIB  # arbitrary: code and configs; what is larger is data
_MOST_FILE_BYTES: Final = MIB  # arbitrary
_MOST_FILES: Final = 500  # arbitrary
_DEEPEST: Final = 5  # arbitrary: folders below the job's
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist", "wandb", "venv", "env"})


def code_in(folder: Path) -> dict[str, str]:
    """Return the text of the code and the configs in a folder and below, by relative path.

    Raises:
        NoAnswer: there is more of it than a job's code should be.
    """
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
