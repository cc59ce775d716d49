"""The two ends of a card's speed, where a job's peaks may depend on it.

Blocks which several streams use, and the tensors of collectives, come back when an event has happened: on an infinitely fast
card at once, on an infinitely slow one when the host has waited for it. A job's peaks are those of the fast end, which logged
runs support; a second run gives the slow end, which the bound covers (docs/multi-gpu.md, "Streams and time").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class End:
    """Peaks on a card of one speed, in bytes."""

    allocated: int
    reserved: int

    def to_dict(self) -> dict[str, int]:
        """Return it as JSON."""
        return {"allocated": self.allocated, "reserved": self.reserved}


@dataclass(frozen=True, slots=True)
class CardSpeed:
    """What the card's speed can change.

    Attributes:
        decides: Whether it decided anything at all: else both ends are one.
        fast: Peaks on an infinitely fast card: the estimate's own.
        slow: Those on an infinitely slow one; None: the job was not run on it.
    """

    decides: bool
    fast: End
    slow: End | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        slow = None if self.slow is None else self.slow.to_dict()
        return {"speed_decides": self.decides, "fast": self.fast.to_dict(), "slow": slow}
