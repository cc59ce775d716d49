"""When the processes of a job lived: those which can hold memory of the card at the same time add up.

    parent      |---- 1 GiB ---------------------------------|
    child 1          |-- 3 GiB --|                                  at once: 1 + 3 + 3 GiB, and three contexts
    child 2             |-- 3 GiB ----|
    child 3                               |- 5 GiB -|                        1 + 5 GiB, and two contexts

How far a process had come when another one began depends on the card's speed, so each counts with its peak for as long as it
lives. A process that was cut short, since enough of it was seen, ends earlier here than on a card. If nobody has waited for it
when another one begins, both live at once; if somebody has, one follows the other.
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
    """When a process lived, by the clock of `now_s`.

    Attributes:
        pid: Its number; 0: the job's own process.
        began_s: When it was made; of the job's own process, when it first touched the card.
        ended_s: When it ended; without end where that is not known.
        not_waited_for: Processes which had ended when it began, and for which nobody had waited.
    """

    pid: int = 0
    began_s: float = 0.0
    ended_s: float = math.inf
    not_waited_for: frozenset[int] = frozenset()

    def is_beside(self, other: Life) -> bool:
        """Return whether both may have lived at once."""
        first, second = sorted((self, other), key=lambda life: life.began_s)
        return second.began_s < first.ended_s or first.pid in second.not_waited_for


def now_s() -> float:
    """Return the seconds since the machine was started, which /proc counts too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def made_s() -> float:
    """Return when this process was made. spec: proc(5), field 22 of stat; the name, field 2, may hold anything."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
        return (int(stat.read().rpartition(")")[2].split()[19]) + 1) * _CLOCK_S


def unreaped(pids: Collection[int]) -> frozenset[int]:
    """Return the processes among `pids` which live, or for which nobody has waited."""
    return frozenset(pid for pid in pids if os.path.exists(f"/proc/{pid}"))


def fullest_moment(lives: Sequence[Life], sizes: Sequence[int]) -> list[int]:
    """Return which of some processes take most of the card together: their places, at the moment when most was taken.

    Args:
        lives: When each lived.
        sizes: What each takes at most, with its context.
    """
    moments = [[other for other, life in enumerate(lives) if life is one or _began_before(life, one)] for one in lives]
    return max(moments, key=lambda places: sum(sizes[place] for place in places))


def _began_before(life: Life, one: Life) -> bool:
    """Return whether `life` began no later than `one`, and lasted until then."""
    return life.began_s <= one.began_s and life.is_beside(one)
