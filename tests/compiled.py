"""Compiled code that test sessions share in build/test-cache, so that a checkout compiles it once.

The names contain a digest of the sources: other sources have other names, and find nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SHARED = Path(__file__).parents[1] / "build" / "test-cache"
_NAMES = ("nullgpu/[!.]*", "oracle-*", "*.so")


def compile_once(make: Callable[[], object], cache: Path) -> None:
    """Call `make`, which compiles into the folder `cache`, after any other process that is doing the same."""
    SHARED.mkdir(parents=True, exist_ok=True)
    with (SHARED / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        take(cache)
        make()
        keep(cache)


def take(cache: Path) -> None:
    """Copy the compiled code of other sessions to the folder `cache`."""
    _copy_missing(SHARED, cache)


def keep(cache: Path) -> None:
    """Copy this session's compiled code in the folder `cache` to the shared folder."""
    _copy_missing(cache, SHARED)


def _copy_missing(source: Path, target: Path) -> None:
    """Copy the files that the target lacks; each file or folder appears completely or not at all."""
    for path in (path for name in _NAMES for path in source.glob(name)):
        copy = target / path.relative_to(source)
        if copy.exists():
            continue
        half = copy.with_name(f".{os.getpid()}-{copy.name}")
        half.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, half)  # type: ignore[operator]
        with suppress(OSError):  # another session was first
            half.rename(copy)
