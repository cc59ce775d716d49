"""One pool for all blocks of a job, planned before it runs: each block has a place chosen by its lifetime. After arXiv
1903.06631.

    offset
      ^      .-----------------.      The pool is as high as its highest block. No pool is lower than the peak of live
      |  .---|  activation 2   |--.   bytes; the loss of a plan is the difference.
      |  | 1 '-----------------'  |
      |  '------------------------'
      |==========================================  parameters
      +--------------------------------------> time

A plan is for one trace, block by block in the order of requests. With the iterations from `repetition.find`, a job can
follow the plan however long it runs: the blocks of every iteration take the places of those of the iteration before, or, if
they live longer than an iteration, of the second, third, ... before.

Method: blocks go one after another to a hole among the placed blocks that live at the same time. First fit and best fit by
descending size (the paper's two) come within a few percent of the peak. Most of the rest is lost in three ways, each with
an order to avoid it:
  - Blocks that live when memory is fullest must lie without gaps. They go first, the long-lived before the short-lived.
  - Blocks that one iteration keeps for the next (outputs of a model, gradients) lie in the middle of the next one's memory.
    So the blocks of each crest (see `_crests`) pile up from the opposite end of the pool to those of the crest before.
  - Large blocks that meet in twos and threes depend on the order, so the order is searched: a block that did not fit is
    placed earlier the next time.
The lowest pool is the plan; the search ends at peak live, or when its work is done. Nothing depends on a clock or on
chance.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief
from vramcast.core.errors import TraceFileError
from vramcast.core.files import atomic_write
from vramcast.core.plain import from_plain, to_plain
from vramcast.plans.lifetimes import Lifetimes
from vramcast.plans.packing import NO_TARGET, Fit, Items, place
from vramcast.plans.repetition import Repetition
from vramcast.tracer.format.trace import MIN_BLOCK_BYTES

FORMAT: Final = "vramcast-pool-plan"
VERSION: Final = 1
WORK: Final = (
    1_000_000_000  # arbitrary; measured: about 2 s of one core, and twice as much gains nothing (benchmarks/simulator/pool.py)
)
_WORK_A_BLOCK: Final = 2_000_000  # arbitrary: less work for few blocks; 40 ms for ten
_FULL: Final = (
    0.98  # measured: as good as 0.99 on the traces of benchmarks/simulator/pool.py; 0.95 leaves T5 3 % above peak live
)
_EMPTY: Final = 0.9  # arbitrary: a crest ends where live bytes fall below this share of the peak
_TARGETS: Final = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)  # arbitrary: above peak live, for piles from both ends
_N_STARTS: Final = 3  # arbitrary: a search starts from this many orders, the best ones
_MOVES: Final = 200  # measured: 50 to 1,000 differ by 0.1 %; a search of this length still recovers
_STRIDE: Final = 0.1  # measured: with 0.5 and 0.25, AlexNet at batch 512 ends 0.5 to 1 % higher
_ENOUGH: Final = 1.0005  # arbitrary: no search for a gain below 0.05 %
_SEED: Final = 2026  # arbitrary: seed of the search

Array = npt.NDArray[np.int64]
Fits = npt.NDArray[np.uint8]


@brief
@dataclass(frozen=True, slots=True)
class Period:
    """Continuation of a plan while the job repeats itself: block b has the place of block b - `n_blocks`.

    Attributes:
        first_block: Number of the first block of the first planned iteration.
        n_blocks: Blocks of one iteration, or of the few after which places repeat.
        end_block: Number behind the last block of the trace's iterations; what follows in the trace is the job's end.
        unplanned: Blocks k of `first_block` + k that are not freed while the iterations last (a growing list): behind the
            trace, the program takes separate memory for them.
    """

    first_block: int
    n_blocks: int
    end_block: int
    unplanned: tuple[int, ...] = ()


@brief
@dataclass(frozen=True, slots=True, eq=False)
class PoolPlan:
    """The place of each block, in the order of requests.

    Attributes:
        offset_bytes: int64[n], multiples of 512.
        size_bytes: int64[n], rounded up to 512.
        height_bytes: The size of the pool.
        algorithm: A description of the algorithm that found it.
        seconds: Planning time.
        period: Continuation of the plan behind the trace; None: there is none.
    """

    offset_bytes: Array
    size_bytes: Array
    height_bytes: int
    algorithm: str
    seconds: float
    period: Period | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON: block number in the order of requests -> offset.

        A program allocates `height_bytes` once. It serves its k-th request (from 0), of `size_bytes[k]` at most, at the
        pool's `offset_bytes[k]`. If there is a period, and the job runs longer than the trace, request k >= end_block has
        the offset of request first_block + (k - first_block) mod n_blocks, unless (k - first_block) mod n_blocks is
        unplanned.
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "algorithm": self.algorithm,
            "seconds": self.seconds,
            "height_bytes": self.height_bytes,
            "alignment_bytes": MIN_BLOCK_BYTES,
            "size_bytes": self.size_bytes.tolist(),
            "offset_bytes": self.offset_bytes.tolist(),
            "period": to_plain(self.period),
        }

    @classmethod
    def from_dict(cls, data: Any) -> PoolPlan:
        """Return the plan written by `to_dict`.

        Raises:
            TraceFileError: `data` is something else.
        """
        if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise TraceFileError(f"This is not a '{FORMAT}' of version {VERSION}: make one with `vramcast plan`.")
        try:
            period = data["period"] and from_plain(Period, data["period"], "period")
            offsets, sizes = (np.array(data[name], np.int64) for name in ("offset_bytes", "size_bytes"))
            plan = cls(offsets, sizes, int(data["height_bytes"]), str(data["algorithm"]), float(data["seconds"]), period)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TraceFileError(f"The plan is damaged ({error!r}): make it again with `vramcast plan`.") from None
        if plan.offset_bytes.ndim != 1 or plan.offset_bytes.shape != plan.size_bytes.shape:
            raise TraceFileError("The plan needs one offset and one size per block: make it again.")
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` to `path` atomically."""
        with atomic_write(path) as file:
            file.write(json.dumps(self.to_dict()).encode())


def plan(lifetimes: Lifetimes, iterations: Repetition | None = None, *, work: int = WORK) -> PoolPlan:
    """Return a place for each block, so that blocks that live at the same time do not overlap.

    Args:
        lifetimes: The blocks' lifetimes.
        iterations: Iterations of the same trace: the plan can then be followed for any number of them.
        work: Limit of the search: number of blocks examined as possible obstacles.
    Raises:
        CompilerError: The planner's C code cannot be compiled here.
    """
    started = time.perf_counter()
    item, period = _turns(lifetimes, iterations)
    items = _items(lifetimes, item)
    height_bytes, offset, algorithm = _Planner(lifetimes, items, work).run()
    return PoolPlan(offset[item], lifetimes.size_bytes.copy(), height_bytes, algorithm, time.perf_counter() - started, period)


# ---------------------------------------------------------------------------------------------------- taking turns
def _turns(lifetimes: Lifetimes, iterations: Repetition | None) -> tuple[Array, Period | None]:
    """Return the item of each block, int64[n], numbered from 0; blocks of one item take turns at one place.

    Blocks of successive iterations take turns if the first is dead when the next is born; otherwise, those of every second,
    third, ... iteration do. Then two blocks that ever live at the same time do so in iterations at most that far apart, and
    all such pairs are in the trace if it has twice as many iterations.
    """
    n = len(lifetimes)
    if iterations is None:
        return np.arange(n), None
    bounds = np.searchsorted(lifetimes.birth, iterations.borders)
    first, per, count = int(bounds[0]), int(bounds[1] - bounds[0]), iterations.count
    if not per:  # the repetition only frees
        return np.arange(n), None
    blocks = first + np.arange(count * per).reshape(count, per)
    birth, death = lifetimes.birth[blocks], lifetimes.death[blocks]
    most = count // 2
    kept = (death[:-most] > birth[most:]).any(axis=0)  # longer than the trace shows: assumed permanent
    apart = 1
    while (death[:-apart] > birth[apart:])[:, ~kept].any():
        apart += 1
    item = np.arange(n)
    turns = blocks[np.arange(count) % apart]
    item[blocks[:, ~kept]] = turns[:, ~kept]
    unplanned = np.flatnonzero(np.tile(kept, apart)).tolist()
    return np.unique(item, return_inverse=True)[1].astype(np.int64), Period(
        first, apart * per, first + count * per, tuple(unplanned)
    )


def _items(lifetimes: Lifetimes, item: Array) -> Items:
    order = np.lexsort((lifetimes.birth, item))
    n = int(item.max(initial=-1)) + 1
    first = np.searchsorted(item[order], np.arange(n + 1)).astype(np.int64)
    size_bytes = lifetimes.size_bytes[order[first[:-1]]] if n else np.empty(0, np.int64)
    return Items(size_bytes, first, lifetimes.birth[order], lifetimes.death[order])


# ---------------------------------------------------------------------------------------------------- placing
class _Planner:
    """Search over orders that keeps the lowest pool."""

    def __init__(self, lifetimes: Lifetimes, items: Items, work: int) -> None:
        self.items = items
        self.work = min(work, _WORK_A_BLOCK * len(items))
        self.peak_bytes, _ = lifetimes.peak_live()
        self.live = lifetimes.live()[:-1]
        self.height_bytes = NO_TARGET
        self.offset = np.zeros(len(items), np.int64)
        self.algorithm = "none needed"

    def run(self) -> tuple[int, Array, str]:
        if not len(self.items):
            return 0, self.offset, self.algorithm
        starts = []
        for algorithm, order, fit in self._orders():
            if self.height_bytes == self.peak_bytes or self.work <= 0:
                break
            starts.append((self._try(algorithm, order, fit), algorithm, order, fit))
        starts.sort(key=lambda start: start[0])
        self._search([start[1:] for start in starts[:_N_STARTS]])
        return self.height_bytes, self.offset, self.algorithm

    def _place(
        self, algorithm: str, order: Array, fit: Fits, target_bytes: int, *, moves: int = 0, seed: int = 1
    ) -> tuple[int, Array]:
        """Return the height that an order leads to, and the order after all moves; keep the offsets if they are the best.

        The height is `NO_TARGET` if the items do not fit below the target.
        """
        done = place(self.items, order, fit, target_bytes, moves=moves, seed=seed, work=self.work)
        self.work -= done.work
        if done.placed < len(order):
            return NO_TARGET, done.order
        height_bytes = int((done.offset_bytes + self.items.size_bytes).max())
        if height_bytes < self.height_bytes:
            self.height_bytes, self.offset, self.algorithm = height_bytes, done.offset_bytes, algorithm
        return height_bytes, done.order

    def _try(self, algorithm: str, order: Array, fit: Fits) -> int:
        """Return the height that an order leads to; piles from both ends need a target, so several are tried."""
        if not (fit == Fit.HIGHEST).any():
            return self._place(algorithm, order, fit, NO_TARGET)[0]
        for share in _TARGETS:
            target_bytes = _aligned(self.peak_bytes * (1 + share))
            if target_bytes >= self.height_bytes or self.work <= 0:
                break
            height_bytes, _ = self._place(algorithm, order, fit, target_bytes)
            if height_bytes < NO_TARGET:
                return height_bytes
        return NO_TARGET

    def _orders(self) -> Iterator[tuple[str, Array, Fits]]:
        """Yield each attempt: its name, the items in order, the fit of each."""
        items = self.items
        size, birth = items.size_bytes, items.birth[items.first[:-1]]
        long = np.maximum.reduceat(items.death - items.birth, items.first[:-1])
        log_size, log_long = (np.floor(np.log2(values)) for values in (size, long))
        highest, crest = self._crests()
        rest = highest < _FULL * self.peak_bytes
        first, best = (np.full(len(items), fit, np.uint8) for fit in (Fit.LOWEST, Fit.SMALLEST))
        odd, even = (np.where(~rest & (crest % 2 == k), Fit.HIGHEST, Fit.LOWEST).astype(np.uint8) for k in (1, 0))
        yield "size descending, first fit", np.lexsort((birth, -size)), first
        # Try both, because the remaining items have the lower end to themselves in one of them.
        yield "fullest first, from both ends", np.lexsort((birth, -size, -long, rest)), even
        yield "fullest first, from both ends", np.lexsort((birth, -size, -long, rest)), odd
        yield "size and duration descending, first fit", np.lexsort((birth, -long, -size)), first
        classes = np.where(rest, 0, -log_long)
        yield "fullest first, long before short, first fit", np.lexsort((birth, -size, classes, rest)), first
        yield "size descending, best fit", np.lexsort((birth, -size)), best
        yield "duration descending, best fit", np.lexsort((birth, -size, -long)), best
        yield "size class and duration descending, best fit", np.lexsort((birth, -long, -log_size)), best
        yield "size class and duration descending, first fit", np.lexsort((birth, -long, -log_size)), first

    def _crests(self) -> tuple[Array, Array]:
        """Return the most bytes live during each item, and the number of its crest.

        A crest is a time at which memory is nearly full, between two times of less. An item belongs to the first crest
        after its birth.
        """
        items, live = self.items, self.live
        highest = np.maximum.reduceat(_range_max(live, items.birth, items.death), items.first[:-1])
        full = np.flatnonzero(live >= _FULL * self.peak_bytes)
        empty = np.flatnonzero(live < _EMPTY * self.peak_bytes)
        before = np.searchsorted(empty, full)
        crest_of_full: Array = np.cumsum(np.diff(before, prepend=before[0]) > 0, dtype=np.int64)
        next_full = np.searchsorted(full, items.birth[items.first[:-1]])
        return highest, crest_of_full[np.minimum(next_full, len(full) - 1)]

    def _search(self, starts: list[tuple[str, Array, Fits]]) -> None:
        """Move blocks that do not fit forward in their order, with ever lower targets, until the work is done."""
        rng = random.Random(_SEED)
        while self.height_bytes > self.peak_bytes * _ENOUGH and self.work > 0:
            for turn, (algorithm, order, fit) in enumerate(starts):
                less_bytes = max(int(_STRIDE * (self.height_bytes - self.peak_bytes)), MIN_BLOCK_BYTES)
                target_bytes = _aligned(self.height_bytes - less_bytes)
                seed = rng.getrandbits(63) | 1
                height_bytes, found = self._place(f"{algorithm}; search", order, fit, target_bytes, moves=_MOVES, seed=seed)
                if height_bytes < NO_TARGET:
                    starts[turn] = (algorithm, found, fit)


def _aligned(size_bytes: float) -> int:
    return int(size_bytes) // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES


def _range_max(values: Array, start: Array, stop: Array) -> Array:
    """Return max(values[start : stop]) of each pair, start < stop, from the maxima of all ranges of a power of two."""
    level = np.frexp((stop - start).astype(np.float64))[1] - 1
    found = np.empty(len(start), np.int64)
    maxima = values
    for power in range(int(level.max(initial=0)) + 1):
        here = np.flatnonzero(level == power)
        found[here] = np.maximum(maxima[start[here]], maxima[stop[here] - (1 << power)])
        maxima = np.maximum(maxima[: -(1 << power)], maxima[1 << power :])
    return found
