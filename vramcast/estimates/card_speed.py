"""The two ends of a card's speed, where a job's peaks may depend on it.

Blocks which several streams use, and the tensors of collectives, come back when an event has happened: on an infinitely fast
card at once, on an infinitely slow one when the host has waited for it. A job's peaks are those of the fast end, which logged
runs support; a second run gives the slow end, which the bound covers (docs/multi-gpu.md, "Streams and time").
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks on a card of one speed, in bytes."""

    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class CardSpeed:
    """What the card's speed can change.

    Attributes:
        decides: Whether it decided anything at all: else both ends are one.
        fast: Peaks on an infinitely fast card: the estimate's own.
        slow: Those on an infinitely slow one; None: the job was not run on it.
    """

    decides: bool
    fast: Peaks
    slow: Peaks | None
