"""The id of the estimate that a job was submitted with: a word in its comment, which Slurm passes to the epilog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vramcast.core.units import MIB

_WORD: Final = re.compile(r"\s*\bvramcast=([0-9a-f]{64}):([0-9]{1,9}):([0-9]{1,9})\b")


@dataclass(frozen=True, slots=True)
class Ticket:
    """The estimate of one job.

    Attributes:
        estimate_id: Id of the estimate, given by the service.
        request_bytes: Memory requested from Slurm, in whole MiB.
        capacity_bytes: Memory of the card.
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
        """Return a comment with this ticket, which replaces an older one."""
        return f"{_WORD.sub('', comment)} {self}".strip()
