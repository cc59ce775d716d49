"""The size limit of the folder of compiled graphs and kernels: at its limit it is emptied, unless another job uses it.

All of it goes at once: an entry of Inductor's refers to files of Triton's, and neither checks for missing ones. Every compiling
process holds a shared lock on the folder. The kernel releases it with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

LIMIT_BYTES: Final = 10 << 30  # arbitrary: some thousand jobs; 400 scripts with compiled GPTs left 3.7 GiB
INTERVAL_S: Final = 3600  # arbitrary: between two checks, since reading the sizes of 3.7 GiB of small files takes 1.6 s
_LOCK: Final = "in-use"  # its modification time: the last check


def enter(folder: Path, limit_bytes: int = LIMIT_BYTES) -> int | None:
    """Empty the folder if it is above its limit and unused, then register as a user of it; the size is checked once an hour.

    Args:
        folder: The folder; it exists, and is ours to write.
        limit_bytes: Limit for all files in it.
    Returns:
        The descriptor that holds the lock. None: the folder cannot be locked, as on some network file systems, and stays as it
        is.
    """
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
    try:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_due(os.fstat(lock)):
                if size_bytes(folder) > limit_bytes:
                    _empty(folder)
                os.pwrite(lock, b"\n", 0)
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError:
        os.close(lock)
        return None
    return lock


def _is_due(lock: os.stat_result) -> bool:
    return lock.st_size == 0 or not 0 <= time.time() - lock.st_mtime < INTERVAL_S


def size_bytes(folder: Path) -> int:
    """Return the size of the files in a folder; files that vanish meanwhile count as 0."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
