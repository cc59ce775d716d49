"""What became of a list of requests: addresses, what was reserved when, every segment that came and went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.simulator.statistics import Level, Statistics

# One segment event: `action` is an `Action` (SEGMENT_* or OOM), `request` the row which caused it, sizes in bytes.
EVENT: Final = np.dtype([(name, np.int64) for name in ("action", "request", "address", "size_bytes", "stream")])

LEVELS: Final = (
    *("requested", "allocated", "active", "reserved", "inactive_split"),
    *("n_allocated", "n_segments", "n_inactive_split"),
)
TOTALS: Final = ("n_retries", "n_ooms", "n_device_allocs", "n_device_frees")


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


def statistics_of(numbers: Sequence[int]) -> Statistics:
    """Return the statistics of `LEVELS` (current, peak each) and `TOTALS` in order."""
    levels = {name: Level(numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(LEVELS)}
    totals = dict(zip(TOTALS, numbers[2 * len(LEVELS) :], strict=True))
    return Statistics(**levels, **totals)  # type: ignore[arg-type]
