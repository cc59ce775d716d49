"""The peaks of a job's ranks, as a trace's header tells them."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.core.errors import TraceFileError
from vramcast.tracer.format.trace import RANKS, Trace


@dataclass(frozen=True, slots=True)
class RankPeaks:
    """One rank which was traced. Sizes in bytes.

    Attributes:
        number: Among all ranks.
        allocated, reserved: Its peaks.
    """

    number: int
    allocated: int
    reserved: int


def world_size_of(trace: Trace) -> int:
    """Return how many ranks a job has; 1 where the trace does not say.

    Raises:
        TraceFileError: the header is damaged.
    """
    said = trace.header.get(RANKS)
    if said is None:
        return 1
    size = said.get("world_size") if isinstance(said, dict) else None
    if not isinstance(size, int) or size < 1:
        raise TraceFileError(f"The trace's ranks are damaged ({str(said)[:80]}): record it again.")
    return size


def ranks_of(trace: Trace) -> tuple[RankPeaks, ...]:
    """Return the ranks which were traced; none of a job of one rank.

    Raises:
        TraceFileError: the header is damaged.
    """
    if world_size_of(trace) == 1:
        return ()
    try:
        return tuple(RankPeaks(*map(int, peaks)) for peaks in trace.header[RANKS]["peaks"])
    except (TypeError, KeyError, ValueError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's ranks are damaged ({type(error).__name__}: {error}): record it again.") from None
