"""The outcome of a list of requests: addresses, segment events, and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief

# One segment event: `action` is an `Action` (SEGMENT_* or OOM), `request` the row that caused it, sizes in bytes.
EVENT: Final = np.dtype([(name, np.int64) for name in ("action", "request", "address", "size_bytes", "stream")])


@dataclass(slots=True)
class Level:
    """A quantity over time, in bytes or as a count."""

    current: int = 0
    peak: int = 0

    def add(self, amount: int) -> None:
        """Move the current value; the peak follows."""
        self.current += amount
        if self.current > self.peak:
            self.peak = self.current


@brief
@dataclass(slots=True)
class Statistics:
    """The counters of `torch.cuda.memory_stats()`, over both pools; bytes unless the name says otherwise.

    `active` blocks are allocated or wait for another stream. `inactive_split` is free memory in partly used segments;
    expandable segments do not count there.
    """

    requested: Level = field(default_factory=Level)
    allocated: Level = field(default_factory=Level)
    active: Level = field(default_factory=Level)
    reserved: Level = field(default_factory=Level)
    inactive_split: Level = field(default_factory=Level)
    n_allocated: Level = field(default_factory=Level)
    n_segments: Level = field(default_factory=Level)
    n_inactive_split: Level = field(default_factory=Level)
    n_retries: int = 0
    n_ooms: int = 0
    n_device_allocs: int = 0
    n_device_frees: int = 0

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Statistics:
        """Return the statistics from the compiled allocator's numbers: current and peak of each level, then the counts."""
        levels = {name: Level(numbers[2 * at], numbers[2 * at + 1]) for at, name in enumerate(LEVELS)}
        return cls(**levels, **dict(zip(COUNTS, numbers[2 * len(LEVELS) :], strict=True)))  # type: ignore[arg-type]


COUNTS: Final = ("n_retries", "n_ooms", "n_device_allocs", "n_device_frees")
LEVELS: Final = tuple(one.name for one in fields(Statistics) if one.name not in COUNTS)


@brief
@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One row per request in each column; columns are None if they were not requested.

    Attributes:
        address: Of the block of each MALLOC and TRY; -1 for other rows and for failures.
        block_bytes: Size of that block; 0 for a failure.
        allocated_bytes: Live blocks after each request.
        active_bytes: Live and waiting blocks after each request.
        reserved_bytes: Segments after each request.
        events: Structured array of `EVENT`, in order; the address of an OOM is the free memory that the driver reports.
        statistics: The counters of `torch.cuda.memory_stats()`.
        stopped_at: Row of the first MALLOC or TAKE that failed, None if all were served.
    """

    address: npt.NDArray[np.int64] | None
    block_bytes: npt.NDArray[np.int64] | None
    allocated_bytes: npt.NDArray[np.int64] | None
    active_bytes: npt.NDArray[np.int64] | None
    reserved_bytes: npt.NDArray[np.int64] | None
    events: npt.NDArray[Any]
    statistics: Statistics
    stopped_at: int | None
