"""The processes of this machine, as /proc tells them. Linux only."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple


class Running(NamedTuple):
    """One process which lives, or has not been waited for: its parent's number, and the clock ticks which it has used."""

    parent: int
    ticks: int


def running() -> dict[int, Running]:
    """Return them by their numbers. spec: proc(5), fields 4, 14 and 15 of stat; the name, field 2, may hold anything."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):  # ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            found[int(stat.parent.name)] = Running(int(fields[1]), int(fields[11]) + int(fields[12]))
    return found
