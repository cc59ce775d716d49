"""One training step for the swap planner: operators in time, live bytes, and blocks that are idle across the peak.

    operator   0    1    2    3    4    5   (0 of the next step)
    start_us   0   10   30   35   80   95   period 100
    load      [##][####][####][######][##][#]    most live bytes while it runs
    block A    W    R - - idle - - - - -  R      swapped out behind 1, needed by 5: idle across the peak (3)
    block B    - - - idle - - - - - - R W - -    always live: from 4 of one step to 4 of the next

An operator's rows are those behind the previous operator's READ and WRITE rows, up to its own. Its load is the maximum of
live bytes over them, from its first ALLOC on. While an operator waits, the load is the live bytes before it allocates
(`rest_bytes`), and at most the bytes left by the operator before it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vramcast.core.errors import UsageError
from vramcast.plans.lifetimes import Lifetimes
from vramcast.tracer.format.trace import Action, Trace

Int64s = npt.NDArray[np.int64]
MIN_SWAP_BYTES = 2**20  # spec: arXiv 1903.06631; below this size, latency dominates a copy


@dataclass(frozen=True, slots=True, eq=False)
class SwapTimeline:
    """The last full step of a trace; arrays have one entry per operator.

    Attributes:
        step: Its number in the trace.
        row: First READ or WRITE row of the operator.
        start_us: Begin of the operator, from the first one's begin.
        duration_us: Time until the next one begins.
        load_bytes: Most live bytes while it runs.
        rest_bytes: Live bytes when it is about to begin.
        accesses: {ALLOC row of a block: operators that touch it, ascending}.
        lasting: Blocks that live from before the step until the next one has begun, or until all accesses are past.
        size_bytes: {block: bytes, rounded to 512}.
        source: Source of the times.
    """

    step: int
    row: Int64s
    start_us: Int64s
    duration_us: Int64s
    load_bytes: Int64s
    rest_bytes: Int64s
    accesses: dict[int, list[int]]
    lasting: frozenset[int]
    size_bytes: dict[int, int]
    source: str

    def __len__(self) -> int:
        return len(self.row)

    @property
    def period_us(self) -> int:
        """Return the duration of the step without waiting."""
        return int(self.duration_us.sum())

    @property
    def peak(self) -> int:
        """Return the first operator with the largest load."""
        return int(np.argmax(self.load_bytes))

    @classmethod
    def of(cls, trace: Trace) -> SwapTimeline:
        """Return the last full step of `trace`: the last one, or the one before if the job ran out of memory in the last.

        Raises:
            UsageError: The trace has no accesses, no full step, or a clock that runs backwards.
        """
        is_access = trace.is_access() & (trace.step >= 0)
        if not is_access.any():
            raise UsageError(
                "The trace does not record when blocks are accessed, so swapping cannot be planned: trace the job on "
                "the null GPU with RunOptions(accesses=True). PyTorch's own memory histories never record it."
            )
        # Memory may also run out for a moment, for example for an optional workspace: the job then continues.
        died = np.flatnonzero(trace.action == Action.OOM)
        died = died[died > np.flatnonzero(is_access)[-1]]
        steps = np.unique(trace.step[is_access & (trace.step < trace.step[died[0]])] if len(died) else trace.step[is_access])
        if not len(steps):
            raise UsageError("The trace has no full step: memory ran out in the first. Trace it on a larger card (--memory).")
        step = int(steps[-1])
        of_step = np.flatnonzero(trace.step == step)
        first = int(of_step[0])
        accesses = np.flatnonzero(is_access & (trace.step == step))
        passed = np.diff(trace.time_us[accesses])
        if (passed < 0).any():
            raise UsageError("The trace's clock runs backwards, so times of access are unknown: trace the job again.")
        begins = np.append(0, np.flatnonzero(passed) + 1)
        row = accesses[begins]
        ends = np.append(accesses[begins[1:] - 1], accesses[-1])  # the last access row of each operator
        start = trace.time_us[row]
        lifetimes = Lifetimes.of(trace)
        live = lifetimes.live()
        firsts = np.append(first, ends[:-1] + 1)
        is_alloc = trace.action == Action.ALLOC
        load, rest = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
        for k, (begin, stop) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
            asks = np.flatnonzero(is_alloc[begin : stop + 1])
            # Blocks that it finds free are freed before it runs; its own allocations coexist with the rest until it ends.
            asked = begin + int(asks[0]) if len(asks) else stop
            load[k] = live[asked : stop + 1].max()
            rest[k] = live[asked - 1] if asked else 0
        # The step before may leave slightly different bytes than this one.
        rest = np.minimum(rest, np.roll(live[ends], 1))
        return cls(
            step=step,
            row=row,
            start_us=start - start[0],
            duration_us=np.diff(start, append=_end_us(trace, int(accesses[-1]))),
            load_bytes=load,
            rest_bytes=rest,
            **_blocks(trace, lifetimes, accesses, begins, first),
            source=str(trace.header.get("clock", {}).get("source", "recorded")),
        )


def _end_us(trace: Trace, row: int) -> int:
    """Return when the operator with the last access `row` ends: at the next event."""
    begin_us = int(trace.time_us[row])
    later = trace.time_us[row + 1 :]
    found = later[later > begin_us][:1]
    return int(found[0]) if len(found) else max(int(trace.header.get("clock", {}).get("end_us", begin_us)), begin_us)


def _blocks(trace: Trace, lifetimes: Lifetimes, rows: Int64s, begins: Int64s, first: int) -> dict[str, Any]:
    operator = np.searchsorted(begins, np.arange(len(rows)), side="right") - 1
    accesses: dict[int, list[int]] = {}
    for block, k in zip(trace.block[rows].tolist(), operator.tolist(), strict=True):
        known = accesses.setdefault(block, [])
        if not known or known[-1] != k:
            known.append(k)
    # After the last access of a trace, the job cleans up.
    following = np.flatnonzero(trace.is_access() & (np.arange(len(trace)) > rows[-1]))
    last = int(following[0]) if len(following) else int(rows[-1])
    always = (lifetimes.birth < first) & (lifetimes.death > last)
    sizes = trace.rounded_bytes()
    return {
        "accesses": accesses,
        "lasting": frozenset(lifetimes.row[always].tolist()),
        "size_bytes": {block: int(sizes[block]) for block in accesses},
    }


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Blocks that can be out across the peak, one entry each; places count operators from the peak, modulo the step.

    Attributes:
        block: ALLOC row.
        size_bytes: Rounded to 512.
        needed: Place of the first operator behind the peak that touches the block (1 to len - 1).
        ready: Place of the last one before the next peak; the block is absent from there to `needed` of the next round.
    """

    block: Int64s
    size_bytes: Int64s
    needed: Int64s
    ready: Int64s

    def __len__(self) -> int:
        return len(self.block)

    @classmethod
    def of(cls, timeline: SwapTimeline, min_bytes: int = MIN_SWAP_BYTES, among: Collection[int] | None = None) -> Candidates:
        """Return the candidates of `timeline`: at least `min_bytes`, with two consecutive accesses on both sides of the
        peak; only blocks in `among`, if given.
        """
        peak, n = timeline.peak, len(timeline)
        rows: list[tuple[int, int, int, int]] = []
        for block, operators in sorted(timeline.accesses.items()):
            size_bytes = timeline.size_bytes[block]
            if size_bytes < min_bytes or peak in operators or (among is not None and block not in among):
                continue
            before = [k for k in operators if k < peak]
            after = [k for k in operators if k > peak]
            if block in timeline.lasting:
                needed, ready = (after or before)[0], (before or after)[-1]
            elif before and after:
                needed, ready = after[0], before[-1]
            else:
                continue
            rows.append((block, size_bytes, (needed - peak) % n, (ready - peak) % n))
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        return cls(*(np.ascontiguousarray(column) for column in columns))
