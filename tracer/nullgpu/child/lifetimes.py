"""Lifetimes of a job's processes: those that can hold memory on the card at the same time add up.

    parent      |---- 1 GiB ---------------------------------|
    child 1          |-- 3 GiB --|                                  at once: 1 + 3 + 3 GiB, and three contexts
    child 2             |-- 3 GiB ----|
    child 3                               |- 5 GiB -|                        1 + 5 GiB, and two contexts

A process's progress at the start of another one depends on the card's speed, so each counts with its peak for its whole
lifetime. A process that was stopped after enough was seen ends earlier here than on a card. If no process has waited for it
when another one begins, both count as alive at once; if one has, the second follows the first.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

_CLOCK_S: Final = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01  # spec: proc(5), unit of a start time


@dataclass(frozen=True, slots=True)
class Life:
    """The lifetime of a process, by the clock of `now_s`.

    Attributes:
        pid: Its number; 0: the job's own process.
        began_s: Its creation; for the job's own process, its first contact with the card.
        ended_s: Its end; infinite if unknown.
        not_waited_for: Processes that had ended when it began but had not been waited for.
    """

    pid: int = 0
    began_s: float = 0.0
    ended_s: float = math.inf
    not_waited_for: frozenset[int] = frozenset()

    def overlaps(self, other: Life) -> bool:
        """Return whether both may have been alive at once."""
        first, second = sorted((self, other), key=lambda life: life.began_s)
        return second.began_s < first.ended_s or first.pid in second.not_waited_for


def now_s() -> float:
    """Return the seconds since the machine started, the clock of /proc."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def made_s() -> float:
    """Return the creation time of this process. spec: proc(5), field 22 of stat; the name, field 2, may contain anything."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
        return (int(stat.read().rpartition(")")[2].split()[19]) + 1) * _CLOCK_S


def unreaped(pids: Collection[int]) -> frozenset[int]:
    """Return the processes among `pids` that are alive or have not been waited for."""
    return frozenset(pid for pid in pids if os.path.exists(f"/proc/{pid}"))


def fullest_moment(lives: Sequence[Life], sizes: Sequence[int]) -> list[int]:
    """Return the indices of the processes that take the most of the card together, at the moment of that maximum.

    Args:
        lives: Lifetime of each process.
        sizes: Maximum of each process, including its context.
    """
    moments = [[other for other, life in enumerate(lives) if life is one or _began_before(life, one)] for one in lives]
    return max(moments, key=lambda places: sum(sizes[place] for place in places))


def _began_before(life: Life, one: Life) -> bool:
    """Return whether `life` began no later than `one`, and lasted until `one` began."""
    return life.began_s <= one.began_s and life.overlaps(one)
