"""What became of a list of requests: addresses, every segment that came and went, and what is counted meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# One segment event: `action` is an `Action` (SEGMENT_* or OOM), `request` the row which caused it, sizes in bytes.
EVENT: Final = np.dtype([(name, np.int64) for name in ("action", "request", "address", "size_bytes", "stream")])


@dataclass(slots=True)
class Level:
    """A quantity over time; all in bytes or counts."""

    current: int = 0
    peak: int = 0

    def add(self, amount: int) -> None:
        """Move the current value; the peak follows."""
        self.current += amount
        if self.current > self.peak:
            self.peak = self.current


@dataclass(slots=True)
class Statistics:
    """What `torch.cuda.memory_stats()` counts, over both pools; bytes unless the name says otherwise.

    `active` blocks are allocated or wait for another stream. `inactive_split` is free memory in segments which are
    partly in use; expandable segments do not count there.
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
        """Return those of the numbers that the compiled allocator gives: current and peak of each level, then the counts."""
        levels = {name: Level(numbers[2 * at], numbers[2 * at + 1]) for at, name in enumerate(LEVELS)}
        return cls(**levels, **dict(zip(COUNTS, numbers[2 * len(LEVELS) :], strict=True)))  # type: ignore[arg-type]


COUNTS: Final = ("n_retries", "n_ooms", "n_device_allocs", "n_device_frees")
LEVELS: Final = tuple(one.name for one in fields(Statistics) if one.name not in COUNTS)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Columns have one row a request; None when they were not asked for.

    Attributes:
        address: Of the block of each MALLOC and TRY; -1 for other rows, and where it failed.
        block_bytes: Size of that block; 0 where it failed.
        allocated_bytes: Live blocks after each request.
        active_bytes: Live and waiting blocks after each request.
        reserved_bytes: Segments after each request.
        events: Structured array of `EVENT`, in order; an OOM's address is what the driver says is free.
        statistics: As `torch.cuda.memory_stats()` counts.
        stopped_at: Row of the first MALLOC or TAKE which failed, None when all were served.
    """

    address: npt.NDArray[np.int64] | None
    block_bytes: npt.NDArray[np.int64] | None
    allocated_bytes: npt.NDArray[np.int64] | None
    active_bytes: npt.NDArray[np.int64] | None
    reserved_bytes: npt.NDArray[np.int64] | None
    events: npt.NDArray[Any]
    statistics: Statistics
    stopped_at: int | None
