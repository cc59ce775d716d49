"""Which estimate a job was submitted with: a word in its comment, which Slurm keeps and hands to the epilog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vramcast.core.units import MIB

_WORD: Final = re.compile(r"\s*\bvramcast=([0-9a-f]{64}):([0-9]{1,9}):([0-9]{1,9})\b")


@dataclass(frozen=True, slots=True)
class Ticket:
    """One job's estimate.

    Attributes:
        estimate_id: As the service gave it.
        request_bytes: What was asked of Slurm, in whole MiB.
        capacity_bytes: The card.
    """

    estimate_id: str
    request_bytes: int
    capacity_bytes: int

    def __str__(self) -> str:
        return f"vramcast={self.estimate_id}:{self.request_bytes // MIB}:{self.capacity_bytes // MIB}"

    @classmethod
    def found_in(cls, comment: str) -> Ticket | None:
        """Return the ticket in a job's comment; None: it has none."""
        match = _WORD.search(comment)
        return cls(match[1], int(match[2]) * MIB, int(match[3]) * MIB) if match else None

    def added_to(self, comment: str) -> str:
        """Return a comment with this ticket, in the place of another one."""
        return f"{_WORD.sub('', comment)} {self}".strip()
