"""A limit on the time of one answer, however many runs of a job that takes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from vramcast.core.errors import TimeLimit, UsageError


@dataclass(frozen=True, slots=True)
class Deadline:
    """When an answer must be there.

    Attributes:
        limit_s: The seconds that were given.
        at_s: When they end, by `time.monotonic`.
    """

    limit_s: float
    at_s: float

    @classmethod
    def after(cls, limit_s: float) -> Deadline:
        """Return the deadline so many seconds from now.

        Raises:
            UsageError: nothing could begin within them.
        """
        if not limit_s > 0:  # also not a number
            raise UsageError(f"The time limit is {limit_s:g} s: it must be above 0, for example 1800.")
        return cls(limit_s, time.monotonic() + limit_s)

    def left_s(self) -> float:
        """Return the seconds that are left.

        Raises:
            TimeLimit: none are.
        """
        left_s = self.at_s - time.monotonic()
        if left_s <= 0:
            raise TimeLimit.within(self.limit_s, ": raise the limit (--timeout), or trace fewer steps.")
        return left_s
