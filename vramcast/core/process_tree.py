"""The processes of this machine, as /proc tells them. Linux only."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple


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
