"""How large the folder of compiled graphs and kernels grows: at its limit it is emptied, when no other job uses it.

All of it goes at once: an entry of Inductor's names files of Triton's, and neither looks for one which somebody took away.
Whoever compiles holds a shared lock on the folder. The kernel drops it with the process, whatever ends it.
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
INTERVAL_S: Final = 3600  # arbitrary: between two looks, as the sizes of 3.7 GiB of small files take 1.6 s to read
_LOCK: Final = "in-use"  # when it was written: the last look


def enter(folder: Path, limit_bytes: int = LIMIT_BYTES) -> int | None:
    """Empty the folder if it is above its limit and nobody uses it; then count as a user of it. It looks once an hour.

    Args:
        folder: There, and ours to write.
        limit_bytes: Of all files in it.
    Returns:
        The descriptor that holds the lock. None: it cannot be locked, as on some network file systems, and stays as it is.
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
    """Return how many bytes the files in a folder have; those which vanish meanwhile have none."""
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
