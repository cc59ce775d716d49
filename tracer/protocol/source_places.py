"""Places in source files: the frame of a stack in the user's own code, and its description."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

_TRACER: Final = Path(__file__).parents[1]
_INSTALLED: Final = re.compile(r"[\\/](site|dist)-packages[\\/]")
_GENERATED: Final = "torchinductor_"  # spec: torch 2.6 to 2.11, the folder in which torch.compile writes its code


class SourceLine(NamedTuple):
    """A line of a function in a file."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Return `train.py:41`, relative to the current folder."""
        name = self.file
        with contextlib.suppress(OSError, ValueError):  # the current folder was removed; or not a path
            name = str(Path(name).relative_to(Path.cwd()))
        return f"{name}:{self.line}"


def users_place(stack: Iterable[SourceLine]) -> SourceLine | None:
    """Return the first place of a stack, innermost first, outside all libraries; otherwise the first that is not ours."""
    others = [place for place in stack if not is_ours(place.file) and _GENERATED not in place.file]
    users = (place for place in others if not is_library(place.file))
    return next(users, others[0] if others else None)


def stack_of(frame: FrameType | None) -> Iterator[SourceLine]:
    """Yield the places of a frame and of its callers."""
    while frame is not None:
        yield SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


@functools.cache
def is_ours(file: str) -> bool:
    """Return whether a file belongs to the tracer."""
    return _TRACER in Path(file).parents


@functools.cache
def is_library(file: str) -> bool:
    """Return whether a file belongs to Python, to an installed package, or is the script of a console command."""
    if file.startswith("<"):
        return file != "<string>"  # spec: python -c
    return file.startswith(_library_folders()) or is_installed(file)


@functools.cache
def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package, also to one of `pip install --target` on the import path."""
    return _INSTALLED.search(file) is not None or file.startswith(_target_folders(tuple(sys.path[1:])))


@functools.cache
def _target_folders(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(os.path.join(folder, "") for folder in path if folder and any(Path(folder).glob("*.dist-info")))


@functools.cache  # a job asks for each of its modules
def _library_folders() -> tuple[str, ...]:
    folders = (sysconfig.get_path("stdlib"), sysconfig.get_path("scripts"), os.path.dirname(os.__file__))
    return tuple(os.path.join(folder, "") for folder in folders)
