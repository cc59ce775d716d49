"""Charts as plain numbers (`chart`), drawn as SVG in a page (`svg`, `page`) or by matplotlib as PNG (`png`)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from vramcast.core.errors import UsageError
from vramcast.core.files import atomic_write


def checked_path(path: str | os.PathLike[str], endings: Collection[str]) -> str | os.PathLike[str]:
    """Return `path`; raise UsageError if its extension is not one of these, or matplotlib is needed but missing."""
    ending, (*others, last) = Path(path).suffix.lower(), endings
    if ending not in endings:
        expected = f"{', '.join(others)} or {last}"
        raise UsageError(f"Picture '{path}' ends in '{ending}': use {expected}.")
    if ending == ".png":
        _require_matplotlib(path)
    return path


def save(path: str | os.PathLike[str], drawings: Mapping[str, Callable[[], str | bytes]]) -> None:
    """Write the drawing for the extension of `path`.

    Args:
        path: The file to write.
        drawings: Drawing functions by lower-case extension.
    Raises:
        UsageError: The extension is unknown, or matplotlib is missing.
        OutputError: The file cannot be written.
    """
    drawn = drawings[Path(checked_path(path, drawings)).suffix.lower()]()
    with atomic_write(path) as file:
        file.write(drawn.encode() if isinstance(drawn, str) else drawn)


def _require_matplotlib(path: str | os.PathLike[str]) -> None:
    """Raise UsageError if matplotlib, which draws `path`, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"Picture '{path}' needs matplotlib: pip install '.[plot]' in vramcast's checkout, or choose .html.")
