"""The processes of this machine, as /proc tells them. Linux only."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_HELD: Final = re.compile(r"^(?:VmRSS|VmPTE):\s+(\d+) kB$", re.MULTILINE)  # spec: proc(5); pages, and the tables of pages
_INODE_BYTES: Final = 1 << 10  # measured: an empty file on a tmpfs takes 990 bytes of the kernel's, Linux 6.18


class Running(NamedTuple):
    """One process which lives, or has not been waited for.

    Attributes:
        parent: Its parent's number.
        ticks: Of the clock, which it has used, and those of its children which have ended: a compiler's programs live for
            less than a second.
    """

    parent: int
    ticks: int


def running() -> dict[int, Running]:
    """Return them by their numbers. spec: proc(5), fields 4 and 14 to 17 of stat; the name, field 2, may hold anything."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):  # ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            found[int(stat.parent.name)] = Running(int(fields[1]), sum(map(int, fields[11:15])))
    return found


def is_active(pid: int) -> bool:
    """Return whether a process goes on: it has neither ended nor been stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TtZX"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Return all which a process started, and those which they did."""
    children: dict[int, list[int]] = {}
    for number, process in running().items():
        children.setdefault(process.parent, []).append(number)
    found, left = list[int](), [pid]
    while left:
        left += (started := children.get(left.pop(), []))
        found += started
    return found


def held_bytes(pid: int, in_memory: Sequence[str] = ()) -> int:
    """Return the memory that a process and all that it started hold; pages which several share count for each.

    Args:
        pid: The process.
        in_memory: Folders, as the youngest of these processes sees them, whose files count: each a tmpfs of theirs alone.
    """
    pids = [pid, *descendants(pid)]
    return sum(map(_of_process, pids)) + (_of_files(pids, in_memory) if in_memory else 0)


def _of_process(pid: int) -> int:
    with contextlib.suppress(OSError):
        return sum(int(kib) << 10 for kib in _HELD.findall(Path(f"/proc/{pid}/status").read_text(errors="replace")))
    return 0


def _of_files(pids: Iterable[int], folders: Sequence[str]) -> int:
    """Return what the files in folders take, as the last process that can be looked into and has all of them sees them."""
    for pid in reversed([*pids]):
        with contextlib.suppress(OSError):
            seen = [os.statvfs(f"/proc/{pid}/root{folder}") for folder in folders]
            return sum((one.f_blocks - one.f_bfree) * one.f_frsize + (one.f_files - one.f_ffree) * _INODE_BYTES for one in seen)
    return 0
