"""The processes of this machine, from /proc. Linux only."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_HELD: Final = re.compile(r"^(?:VmRSS|VmPTE):\s+(\d+) kB$", re.MULTILINE)  # spec: proc(5); pages and page tables
_INODE_BYTES: Final = 1 << 10  # measured: an empty file on a tmpfs takes 990 bytes of kernel memory, Linux 6.18


class LiveProcess(NamedTuple):
    """A process that is alive, or was not waited for.

    Attributes:
        parent: Number of its parent.
        ticks: Clock ticks used by it and its ended children, because a compiler's programs live for less than a second.
    """

    parent: int
    ticks: int


def running() -> dict[int, LiveProcess]:
    """Return the processes by number. spec: proc(5), fields 4 and 14 to 17 of stat; field 2, the name, may be any text."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):  # ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            found[int(stat.parent.name)] = LiveProcess(int(fields[1]), sum(map(int, fields[11:15])))
    return found


def is_active(pid: int) -> bool:
    """Return whether a process has neither ended nor been stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TtZX"
    except OSError:
        return False


def descendants(pid: int, others: Collection[int] = ()) -> list[int]:
    """Return the children of a process, and their descendants; without `others`, and theirs."""
    children: dict[int, list[int]] = {}
    for number, process in running().items():
        children.setdefault(process.parent, []).append(number)
    found, left = list[int](), [pid]
    while left:
        left += (started := [child for child in children.get(left.pop(), ()) if child not in others])
        found += started
    return found


def held_bytes(pid: int, in_memory: Sequence[str] = ()) -> int:
    """Return the memory of a process and its descendants; a shared page counts for each of them.

    Args:
        pid: The process.
        in_memory: Folders with files that count, as the youngest of these processes sees them: each a tmpfs of their own.
    """
    pids = [pid, *descendants(pid)]
    return sum(map(_of_process, pids)) + (_of_files(pids, in_memory) if in_memory else 0)


def _of_process(pid: int) -> int:
    with contextlib.suppress(OSError):
        return sum(int(kib) << 10 for kib in _HELD.findall(Path(f"/proc/{pid}/status").read_text(errors="replace")))
    return 0


def _of_files(pids: Iterable[int], folders: Sequence[str]) -> int:
    """Return the size of the files in folders, as seen by the last readable process that has all of them."""
    for pid in reversed([*pids]):
        with contextlib.suppress(OSError):
            seen = [os.statvfs(f"/proc/{pid}/root{folder}") for folder in folders]
            return sum((one.f_blocks - one.f_bfree) * one.f_frsize + (one.f_files - one.f_ffree) * _INODE_BYTES for one in seen)
    return 0
