"""A job's peak as written by our epilog to Slurm's AdminComment: `vramcast-peak=3250:14913:tesla-t4`.

It has the peak of the fullest card, the card's size, both in MiB, and its name. Slurm 22.05's sacctmgr converts its input
to lowercase, which this form survives and Jobstats' summaries would not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vramcast.core.units import MIB

HOW: Final = "processes sampled by vramcast's node service"
_WORD: Final = re.compile(r"\bvramcast-peak=(\d{1,9}):(\d{0,9}):([a-z0-9._-]{0,80})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NotedPeak:
    """The peak of a job's fullest card.

    Attributes:
        peak_bytes: Peak of all its processes on that card, in whole MiB.
        capacity_bytes: Memory of the card; None: nvidia-smi did not report it.
        card: Its name in lowercase, `-` for blanks; "": unknown.
    """

    peak_bytes: int
    capacity_bytes: int | None
    card: str

    @classmethod
    def of(cls, peak_bytes: int, capacity_bytes: int | None, card: str) -> NotedPeak:
        """Return the note for a card with a name in nvidia-smi's form."""
        return cls(peak_bytes, capacity_bytes, re.sub(r"[^a-z0-9._-]+", "-", card.lower())[:80])

    @classmethod
    def found_in(cls, comment: str) -> NotedPeak | None:
        """Return the note in an AdminComment; None: there is none."""
        match = _WORD.search(comment)
        if match is None:
            return None
        return cls(int(match[1]) * MIB, int(match[2]) * MIB if match[2] else None, match[3].lower())

    def __str__(self) -> str:
        size = "" if self.capacity_bytes is None else str(self.capacity_bytes // MIB)
        return f"vramcast-peak={self.peak_bytes // MIB}:{size}:{self.card}"
