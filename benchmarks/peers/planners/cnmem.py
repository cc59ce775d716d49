"""NVIDIA's CnMem for the requests of a trace: the final size of the pool.

CnMem is the pool that arXiv 1903.06631 compares with. From its published description (github.com/NVIDIA/cnmem, README and
header): sizes are rounded up to 512 B; a request takes the smallest free block that is large enough, the rest of which stays
free; a freed block merges with free neighbours; if nothing fits, the pool requests the missing bytes from the driver and keeps
them. Memory that the driver returned at different times does not merge.

Assumptions: the pool begins empty and grows by exactly the request. A block that another stream still uses is free when that
use ends (FREE_COMPLETED). CnMem separates blocks by stream; here one list serves all, which flatters it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from vramcast.plans.lifetimes import Lifetimes
from vramcast.tracer.format.trace import Trace

GRANULARITY_BYTES: Final = 512  # spec: CNMEM_GRANULARITY in cnmem.cpp


def peak(trace: Trace) -> int:
    """Return the bytes that the pool has taken from the driver at the end of the trace: it returns nothing."""
    return _Pool().play(Lifetimes.of(trace))


class _Pool:
    """One list of free blocks, indexed by size for best fit and by address for merging."""

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.by_size: list[tuple[int, int]] = []  # size, start
        self.starts: dict[int, int] = {}  # free blocks: start -> end
        self.ends: dict[int, int] = {}  # and end -> start
        self.segments: set[int] = set()  # starts of segments: nothing merges across them

    def play(self, lifetimes: Lifetimes) -> int:
        """Return the size of the pool after all blocks."""
        size_bytes = (-(-lifetimes.size_bytes // GRANULARITY_BYTES) * GRANULARITY_BYTES).tolist()
        events = [(time, number) for number, time in enumerate(lifetimes.birth.tolist())]
        events += [(time, ~number) for number, time in enumerate(lifetimes.death.tolist()) if time < lifetimes.length]
        place: dict[int, int] = {}
        for _, number in sorted(events):
            if number >= 0:
                place[number] = self.malloc(size_bytes[number])
            else:
                self.free(place.pop(~number), size_bytes[~number])
        return self.taken_bytes

    def malloc(self, size_bytes: int) -> int:
        """Return the start of a block; segments are consecutive."""
        at = bisect_left(self.by_size, (size_bytes, 0))
        if at == len(self.by_size):
            start = self.taken_bytes
            self.segments.add(start)
            self.taken_bytes += size_bytes
            return start
        found_bytes, start = self.by_size[at]
        self._take(start, start + found_bytes)
        if found_bytes > size_bytes:
            self._give(start + size_bytes, start + found_bytes)
        return start

    def free(self, start: int, size_bytes: int) -> None:
        """Free a block and merge it with its free neighbours in the same segment."""
        end = start + size_bytes
        if end in self.starts and end not in self.segments:
            after = self.starts[end]
            self._take(end, after)
            end = after
        if start in self.ends and start not in self.segments:
            before = self.ends[start]
            self._take(before, start)
            start = before
        self._give(start, end)

    def _give(self, start: int, end: int) -> None:
        insort(self.by_size, (end - start, start))
        self.starts[start], self.ends[end] = end, start

    def _take(self, start: int, end: int) -> None:
        del self.by_size[bisect_left(self.by_size, (end - start, start))], self.starts[start], self.ends[end]
