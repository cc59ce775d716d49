"""Compiled code that test sessions share in build/test-cache, so that a checkout compiles it once.

The names say what the code was made of: other sources have other names, and find nothing.
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
    """Call `make`, which compiles into the folder `cache`, after a process that does the same now."""
    SHARED.mkdir(parents=True, exist_ok=True)
    with (SHARED / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        take(cache)
        make()
        keep(cache)


def take(cache: Path) -> None:
    """Copy what other sessions compiled to the folder `cache`."""
    _copy_missing(SHARED, cache)


def keep(cache: Path) -> None:
    """Copy what this session compiled in the folder `cache` to where others look."""
    _copy_missing(cache, SHARED)


def _copy_missing(source: Path, target: Path) -> None:
    """Copy what the target lacks; each file or folder appears whole or not at all."""
    for path in (path for name in _NAMES for path in source.glob(name)):
        copy = target / path.relative_to(source)
        if copy.exists():
            continue
        half = copy.with_name(f".{os.getpid()}-{copy.name}")
        half.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, half)  # type: ignore[operator]
        with suppress(OSError):  # another session was first
            half.rename(copy)
