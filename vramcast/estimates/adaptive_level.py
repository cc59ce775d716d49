"""Bounds that keep their coverage while jobs, cards and software change: each finished job updates the level for the next.

    online = Online(0.99, "state.jsonl")
    request = online.request(estimate)                                  # bytes to ask the scheduler for
    online.observe(estimate, measured_bytes, requested_bytes=request)   # when the job has ended

The method is adaptive conformal inference: over any sequence of jobs, the share of jobs that stay below their request
approaches the level. The state is an append-only file, so a restarted scheduler continues from it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

from vramcast.core.errors import DatasetError
from vramcast.datasets.journal import Journal, RejectedRow, read_lines
from vramcast.learner.conformal import AdaptiveConformal

_LEAST: Final = 1e-3  # arbitrary: the lowest level of a request
_MOST: Final = 1 - 1e-4  # arbitrary: the highest level of a request
RATE: Final = 0.02  # arbitrary: the paper uses 0.005 to 0.05; a larger rate follows changes sooner and requests more meanwhile
_BEYOND: Final = 5 * RATE  # arbitrary: after five jobs in a row above their requests, the next requests the whole card
HIGHEST: Final = _MOST + _BEYOND  # from this level on, the whole card is requested


class BoundedEstimate(Protocol):
    """The part of an `Estimate` that `Online` needs."""

    def bound_at(self, level: float) -> int:
        """Return the upper bound of the process peak at a level, in bytes."""

    @property
    def card_bytes(self) -> int:
        """Size of the job's card, in bytes."""


class Online:
    """Memory requests at an adaptive level, which keep their coverage.

    Args:
        level: Share of jobs that should stay below their request, in (0, 1).
        state: File of past observations; None: keep them in memory only.
        rate: Change of the level per job.
        asked: Initial level, if the caller keeps the state; None: `level`.

    Attributes:
        observed: Number of observed jobs.

    Raises:
        UsageError: The level or the rate is out of range.
        DatasetError: The state cannot be read, or belongs to another level.

    Example:
        >>> online = vramcast.Online(0.99)
        >>> request = online.request(est)
        >>> online.observe(est, measured_bytes=request - 1, requested_bytes=request) < 0.99
        True
    """

    def __init__(
        self, level: float = 0.99, state: str | os.PathLike[str] | None = None, *, rate: float = RATE,
        asked: float | None = None,
    ) -> None:  # fmt: skip
        self._adaptive = AdaptiveConformal(level, rate, level if asked is None else asked)
        self._path = Path(state) if state is not None else None
        self.observed = 0
        if self._path is not None and self._path.exists():
            for where, row in read_lines(self._path):
                self._take(where, row)

    def _take(self, where: str, row: object) -> None:
        if isinstance(row, RejectedRow):  # a torn last line is a job that was not observed
            return
        if not isinstance(row, dict) or row.get("level") != self._adaptive.level or not isinstance(row.get("asked"), float):
            raise DatasetError(f"{where} does not belong to a state at level {self._adaptive.level:g}: choose another file.")
        self._adaptive.asked = row["asked"]
        self.observed += 1

    @property
    def asked(self) -> float:
        """Level of the next request; it may leave (0, 1)."""
        return self._adaptive.asked

    def request(self, estimate: BoundedEstimate) -> int:
        """Return the bytes to request for a job.

        Above the highest level, the request rises linearly from that quantile to the whole card. At 0.99, one job above its
        request keeps the level there for some fifty jobs: if each of them requested the whole card, half of all jobs would.

        Args:
            estimate: The job's estimate.

        Returns:
            Bytes, at most the size of the job's card.
        """
        quantile = min(estimate.bound_at(min(max(self.asked, _LEAST), _MOST)), estimate.card_bytes)
        beyond = min(max(0.0, self.asked - _MOST) / _BEYOND, 1.0)
        return quantile + round(beyond * (estimate.card_bytes - quantile))

    def observe(
        self,
        estimate: BoundedEstimate,
        measured_bytes: int,
        *,
        requested_bytes: int | None = None,
        ran_out_of_memory: bool = False,
    ) -> float:
        """Record a finished job.

        Args:
            estimate: The job's estimate at the time of its request.
            measured_bytes: The job's process peak, in bytes.
            requested_bytes: Result of `request` at that time, in bytes; default: its result now, which is the same only if no
                other job ended in between.
            ran_out_of_memory: Whether the job needed more than its request.

        Returns:
            The level of the next request.
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
