"""A time limit for one answer, over all runs of its job."""

from __future__ import annotations

import time
from dataclasses import dataclass

from vramcast.core.errors import TimeLimit, UsageError


@dataclass(frozen=True, slots=True)
class Deadline:
    """The deadline of an answer.

    Attributes:
        limit_s: The limit in seconds.
        at_s: The deadline, by `time.monotonic`.
    """

    limit_s: float
    at_s: float

    @classmethod
    def after(cls, limit_s: float) -> Deadline:
        """Return the deadline `limit_s` seconds from now.

        Raises:
            UsageError: The limit is not positive.
        """
        if not limit_s > 0:  # also for NaN
            raise UsageError(f"The time limit is {limit_s:g} s: it must be above 0, for example 1800.")
        return cls(limit_s, time.monotonic() + limit_s)

    def left_s(self) -> float:
        """Return the remaining seconds.

        Raises:
            TimeLimit: No time remains.
        """
        left_s = self.at_s - time.monotonic()
        if left_s <= 0:
            raise TimeLimit.within(self.limit_s, ": raise the limit (--timeout), or trace fewer steps.")
        return left_s
