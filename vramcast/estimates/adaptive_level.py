"""Bounds whose coverage holds while jobs, cards and software change: each finished job moves the level asked of the next.

    online = Online(0.99, "state.jsonl")
    request = online.request(estimate)                                  # bytes to ask the scheduler for
    online.observe(estimate, measured_bytes, requested_bytes=request)   # when the job has ended

Adaptive conformal inference: over any sequence of jobs the share which stayed below its request approaches the level. The
state is an append-only file; a scheduler which is restarted goes on where it was.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

from vramcast.core.errors import DatasetError
from vramcast.datasets.journal import Journal, Rejected, read_lines
from vramcast.learner.conformal import Adaptive

_LEAST: Final = 1e-3  # arbitrary: the lowest level which an estimate is asked for
_MOST: Final = 1 - 1e-4  # arbitrary: the highest level which an estimate is asked for
RATE: Final = 0.02  # arbitrary: the paper uses 0.005 to 0.05; larger follows a change sooner and asks for more meanwhile
_BEYOND: Final = 5 * RATE  # arbitrary: five jobs in a row above their requests, then the next asks for the whole card
HIGHEST: Final = _MOST + _BEYOND  # from which on the whole card is asked for


class Judged(Protocol):
    """What of an `Estimate` is needed."""

    def quantile(self, level: float) -> int:
        """Return the process peak's quantile, bytes."""

    @property
    def card_bytes(self) -> int:
        """The size of the job's card."""


class Online:
    """Requests at a level, kept true.

    Args:
        level: Share of jobs which shall stay below their request, in (0, 1).
        state: File of what was observed; None: kept in memory alone.
        rate: How far one job moves the level.
        asked: The level to go on from, where somebody else keeps the state; None: `level`.
    Raises:
        UsageError: level or rate out of range.
        DatasetError: the state cannot be read, or is of another level.
    """

    def __init__(
        self, level: float = 0.99, state: str | os.PathLike[str] | None = None, *, rate: float = RATE,
        asked: float | None = None,
    ) -> None:  # fmt: skip
        self._adaptive = Adaptive(level, rate, level if asked is None else asked)
        self._path = Path(state) if state is not None else None
        self.observed = 0
        if self._path is not None and self._path.exists():
            for where, row in read_lines(self._path):
                self._take(where, row)

    def _take(self, where: str, row: object) -> None:
        if isinstance(row, Rejected):  # a torn last line is a job which was not observed
            return
        if not isinstance(row, dict) or row.get("level") != self._adaptive.level or not isinstance(row.get("asked"), float):
            raise DatasetError(f"{where} is not of a state at level {self._adaptive.level:g}: choose another file.")
        self._adaptive.asked = row["asked"]
        self.observed += 1

    @property
    def asked(self) -> float:
        """The level which the next estimate is asked for; it may leave (0, 1)."""
        return self._adaptive.asked

    def request(self, estimate: Judged) -> int:
        """Return the bytes to request for the job: at most its card.

        Above the highest level it goes in a straight line from that quantile to the whole card. At 0.99 one job above its
        request takes the level there for some fifty jobs: if each of them asked for the whole card, half of all jobs would.
        """
        quantile = min(estimate.quantile(min(max(self.asked, _LEAST), _MOST)), estimate.card_bytes)
        beyond = min(max(0.0, self.asked - _MOST) / _BEYOND, 1.0)
        return quantile + round(beyond * (estimate.card_bytes - quantile))

    def observe(
        self, estimate: Judged, measured_bytes: int, *, requested_bytes: int | None = None, ran_out_of_memory: bool = False
    ) -> float:
        """Take in a finished job; return the level to ask for next.

        Args:
            estimate: As it was when the job was requested.
            measured_bytes: Its process peak.
            requested_bytes: What `request` said for it then; default: what it says now, which is the same only if no other job
                ended in between.
            ran_out_of_memory: It wanted more than it was given.
        """
        requested_bytes = self.request(estimate) if requested_bytes is None else requested_bytes
        covered = not ran_out_of_memory and measured_bytes <= requested_bytes
        asked = self._adaptive.observe(covered=covered)
        self.observed += 1
        if self._path is not None:
            with Journal(self._path) as lines:
                row = {"level": self._adaptive.level, "asked": asked, "covered": covered, "measured_bytes": measured_bytes}
                lines.append(row)
        return asked
