"""Times at which each chosen block is copied out and in: one stream in each direction.

Time runs from one peak to the next. At the peak all chosen blocks are out; first they come in, each before the operator
that needs it, then they go out again, each behind the last operator that touches it. So copies in never meet copies out.

    compute   |peak|----|----|----|----|----|----|----|----|peak|
    in                [A][ B  ]                                       in the order in which they are needed
    out                                   [ B  ][A]                   in the order in which they are ready
    load      residual; A and B in flight count as present; never above the limit

`without_waiting`: copies in are as late as possible, copies out start at once, and no operator ever waits. `within` a
limit: copies in are as early as the limit allows, and operators wait for copies where they must.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from vramcast.core.errors import UsageError
from vramcast.plans.swap_timeline import Candidates, Int64s, SwapTimeline

_REACHED: Final = 0.8  # arbitrary: share of the line rate that pinned copies reach; the paper's fit is 0.84 out and 0.77 in
_LATENCY_US: Final = 10.0  # arbitrary: latency of one asynchronous copy; the paper's fit is 47.2 out and 9.7 in


@dataclass(frozen=True, slots=True)
class Link:
    """A link between a card and its host, with one independent stream in each direction.

    A copy takes latency + bytes / bandwidth.

    Attributes:
        out_bytes_per_s, in_bytes_per_s: From the card to the host, and back.
        out_latency_us, in_latency_us: Of every copy.
    """

    name: str
    out_bytes_per_s: float
    in_bytes_per_s: float
    out_latency_us: float = _LATENCY_US
    in_latency_us: float = _LATENCY_US

    def out_us(self, size_bytes: int) -> int:
        """Return the duration of a copy to the host, in whole microseconds, rounded up."""
        return math.ceil(self.out_latency_us + 1e6 * size_bytes / self.out_bytes_per_s)

    def in_us(self, size_bytes: int) -> int:
        """Return the duration of a copy to the card, in whole microseconds, rounded up."""
        return math.ceil(self.in_latency_us + 1e6 * size_bytes / self.in_bytes_per_s)


def _pcie(name: str, transfers_per_s: float) -> Link:
    rate = transfers_per_s * 16 * 128 / 130 / 8 * _REACHED  # spec: PCI Express Base 3.0 to 5.0, 16 lanes, 128b/130b code
    return Link(name, rate, rate)


LINKS: Final[Mapping[str, Link]] = MappingProxyType({
    link.name: link
    for link in (
        _pcie("pcie3", 8e9),  # spec: PCI Express Base 3.0
        _pcie("pcie4", 16e9),  # spec: PCI Express Base 4.0
        _pcie("pcie5", 32e9),  # spec: PCI Express Base 5.0
        Link("nvlink-c2c", 450e9 * _REACHED, 450e9 * _REACHED),  # spec: NVIDIA Grace Hopper white paper, each direction
        Link("paper", 1e9 / 0.0756, 1e9 / 0.0823, 47.2, 9.7),  # measured: arXiv 1903.06631's code, PCIe 3 x16, pinned
    )
})  # fmt: skip


def find_link(link: str | Link) -> Link:
    """Return the link called `link`, or `link` itself.

    Raises:
        UsageError: There is no such link.
    """
    if isinstance(link, Link):
        return link
    if link not in LINKS:
        raise UsageError(f"Link '{link}' is unknown: use one of {', '.join(LINKS)}.")
    return LINKS[link]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Copies of the chosen candidates, one entry each in `chosen`'s order; microseconds since the peak operator began.

    Attributes:
        chosen: Indexes into the candidates.
        out_start, out_end, in_start, in_end: Times of the copies; copies out belong to the round's end.
        wait_us: Wait of each operator, by place behind the peak; the peak's own wait comes at the round's end.
        peak_bytes: Most bytes on the card at any instant, including blocks in flight.
    """

    chosen: Int64s
    out_start: Int64s
    out_end: Int64s
    in_start: Int64s
    in_end: Int64s
    wait_us: Int64s
    peak_bytes: int

    @property
    def overhead_us(self) -> int:
        """Return the extra time of the step."""
        return int(self.wait_us.sum())


class Scheduler:
    """A scheduler for subsets of a step's candidates over one link."""

    def __init__(self, timeline: SwapTimeline, candidates: Candidates, link: Link) -> None:
        peak = timeline.peak
        self.candidates = candidates
        self.load = np.roll(timeline.load_bytes, -peak)
        self.rest = np.roll(timeline.rest_bytes, -peak)
        self.durations = np.roll(timeline.duration_us, -peak)
        self.ends = np.cumsum(self.durations)
        self.starts = self.ends - self.durations
        sizes = candidates.size_bytes.tolist()
        self.out_us = np.array([link.out_us(size) for size in sizes], np.int64)
        self.in_us = np.array([link.in_us(size) for size in sizes], np.int64)

    def least_load(self, chosen: Int64s) -> Int64s:
        """Return the load of every operator if copies took no time."""
        c = self.candidates
        absent = np.zeros(len(self.load) + 1, np.int64)
        sizes = c.size_bytes[chosen]
        absent[0] = sizes.sum()
        np.subtract.at(absent, c.needed[chosen], sizes)
        np.add.at(absent, c.ready[chosen] + 1, sizes)
        return self.load - np.cumsum(absent[:-1])

    def without_waiting(self, chosen: Int64s) -> Schedule | None:
        """Return the schedule without waiting operators, None if the copies take too long for that."""
        c, n = self.candidates, len(self.load)
        ins = chosen[np.lexsort((chosen, c.needed[chosen]))]
        latest = self.starts[c.needed[ins]]
        after = np.append(np.cumsum(self.in_us[ins][::-1])[::-1], 0)
        in_end = np.minimum.accumulate((latest + after[1:])[::-1])[::-1] - after[1:]
        in_start = in_end - self.in_us[ins]
        outs = chosen[np.lexsort((chosen, c.ready[chosen]))]
        out_start, out_end = _queue(self.ends[c.ready[outs]], self.out_us[outs])
        if len(chosen) and (in_start[0] < 0 or out_end[-1] > self.ends[-1]):
            return None
        return self._schedule(ins, outs, (in_start, in_end), (out_start, out_end), np.zeros(n, np.int64))

    def within(self, chosen: Int64s, limit_bytes: int) -> Schedule:
        """Return the schedule that keeps to `limit_bytes`, with the necessary waits.

        Args:
            chosen: Candidates with `least_load(chosen).max() <= limit_bytes`.
            limit_bytes: Limit of live bytes at any instant.
        """
        c, n = self.candidates, len(self.load)
        ins = chosen[np.lexsort((chosen, c.needed[chosen]))]
        outs = chosen[np.lexsort((chosen, c.ready[chosen]))]
        begin = self._earliest(ins, limit_bytes)
        in_start, in_end = np.zeros(len(ins), np.int64), np.zeros(len(ins), np.int64)
        out_start, out_end = np.zeros(len(outs), np.int64), np.zeros(len(outs), np.int64)
        wait = np.zeros(n, np.int64)
        absent = int(c.size_bytes[chosen].sum())  # blocks not on their way in
        n_begun = n_needed = n_ready = n_gone = 0
        now = in_free = out_free = 0
        for q in range(n):
            # Finished copies out free memory; wait for more of them while the operator does not fit.
            while n_gone < n_ready and out_end[n_gone] <= now:
                absent += int(c.size_bytes[outs[n_gone]])
                n_gone += 1
            waited_from, first = now, n_begun
            while n_begun < len(ins) and begin[n_begun] == q:
                absent -= int(c.size_bytes[ins[n_begun]])
                n_begun += 1
            while self.load[q] - absent > limit_bytes:
                now = max(now, int(out_end[n_gone]))
                absent += int(c.size_bytes[outs[n_gone]])
                n_gone += 1
            for i in range(first, n_begun):
                in_start[i] = max(in_free, now)
                in_free = in_end[i] = in_start[i] + self.in_us[ins[i]]
            while n_needed < len(ins) and c.needed[ins[n_needed]] == q:
                now = max(now, int(in_end[n_needed]))
                n_needed += 1
            wait[q] = now - waited_from
            now += int(self.durations[q])
            while n_ready < len(outs) and c.ready[outs[n_ready]] == q:
                out_start[n_ready] = max(out_free, now)
                out_free = out_end[n_ready] = out_start[n_ready] + self.out_us[outs[n_ready]]
                n_ready += 1
        if len(outs):
            wait[0] = max(0, int(out_end[-1]) - now)
        return self._schedule(ins, outs, (in_start, in_end), (out_start, out_end), wait)

    def _schedule(
        self, ins: Int64s, outs: Int64s, came: tuple[Int64s, Int64s], went: tuple[Int64s, Int64s], wait: Int64s
    ) -> Schedule:
        """Return the schedule of copies in the orders `ins` and `outs`, with its peak."""
        by_in, by_out = np.argsort(ins), np.argsort(outs)
        waited = np.cumsum(np.append(0, wait[1:]))
        # Each operator is followed by the wait of the next one, which may be of length 0: then the operator counts.
        edges = np.concatenate([self.ends + waited, self.starts + waited])
        base = np.concatenate([np.roll(self.rest, -1), self.load])
        order = np.argsort(edges, kind="stable")
        edges, base = edges[order], base[order]
        times = np.concatenate([came[0], went[1]])
        sizes = np.concatenate([-self.candidates.size_bytes[ins], self.candidates.size_bytes[outs]])
        end = int(self.ends[-1] + wait.sum())
        at = np.unique(np.concatenate([edges, times]))
        at = at[at < end]
        by_time = np.argsort(times)
        absent = np.append(0, np.cumsum(sizes[by_time]))[np.searchsorted(times[by_time], at, side="right")]
        load = base[np.searchsorted(edges, at, side="right") - 1] - absent - int(self.candidates.size_bytes[ins].sum())
        return Schedule(np.sort(ins), went[0][by_out], went[1][by_out], came[0][by_in], came[1][by_in], wait, int(load.max()))

    def _earliest(self, ins: Int64s, limit_bytes: int) -> list[int]:
        """Return for each copy in, in order, the first operator during which it may begin.

        From there until the block is needed, every operator fits while all later blocks are still out.
        """
        c = self.candidates
        later = int(c.size_bytes[ins].sum())
        begin: list[int] = []
        for i in ins.tolist():
            later -= int(c.size_bytes[i])
            q = int(c.needed[i])
            lowest = begin[-1] if begin else 0
            while q > lowest and self.load[q - 1] - later <= limit_bytes:
                q -= 1
            begin.append(q)
        return begin


def _queue(ready: Int64s, takes: Int64s) -> tuple[Int64s, Int64s]:
    """Return begin and end of jobs that one server processes in order, each when it is ready."""
    before = np.append(0, np.cumsum(takes)[:-1]) if len(takes) else takes
    start = np.maximum.accumulate(ready - before) + before if len(takes) else takes
    return start, start + takes
