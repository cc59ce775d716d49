"""The iteration of a job, found in what it asks of the allocator, without step marks.

    A 4000, A 512, F -2, A 4000, F -1, F -4, A 4000, A 512, F -2, ...      requests: sizes, and frees by distance to their ALLOC
            [warm-up][ iteration ][ iteration ][ iteration ][rest]

A request is told by its size if it asks, by the distance to its ALLOC if it frees: neither knows addresses. The iteration is
the longest subsequence of more than 100 requests which is immediately repeated; what repeats inside of it (layers) is
shorter, and several iterations which together repeat are taken apart by their own, shortest, period. After arXiv 1903.06631.

How: a square of period p, that is 2 p requests of which the second half is as the first, has a multiple of p in its first
half. So it is enough to look, for every p, at the pairs (k p, k p + p): n ln n of them. From each pair, how far the two
places agree to the right and to the left says whether a square of period p is there, and how long p goes on repeating.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vramcast.simulator.planning.lifetimes import Lifetimes
from vramcast.tracer.format.trace import Action, Trace

MIN_PERIOD: Final = 101  # spec: arXiv 1903.06631 takes periods of more than 100 requests
_CHUNK: Final = 1 << 20  # arbitrary: pairs looked at together; some 50 MB

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """Iterations which ask for the same, one after another.

    Attributes:
        start: The request with which the first begins; requests are the rows of `requests_of`.
        period: Requests of an iteration.
        borders: int64[count + 1], the trace row with which each begins, and the row behind the last: iteration k is
            borders[k] <= row < borders[k + 1]. They lie where few bytes live, which need not be where a step begins.
    """

    start: int
    period: int
    borders: Array

    @property
    def count(self) -> int:
        """How many iterations, 2 or more."""
        return len(self.borders) - 1


def find(trace: Trace) -> Repetition | None:
    """Return the iteration of `trace`, None when nothing of more than 100 requests is immediately repeated.

    Limits: of a job which is traced for few steps not enough repeats; gradients, for one, are freed a step after they are
    asked for, at another distance after a step which makes the optimizer's state. Four steps show two equal ones.
    """
    rows, tokens = requests_of(trace)
    found = longest_square(tokens)
    if found is None:
        return None
    start, end, period = found
    count = (end - start) // period
    live = Lifetimes.of(trace).live()
    # Any start will do from which `count` iterations follow: the one at which the fewest bytes cross the border.
    starts = rows[start : end - count * period + 1]
    start += int(np.argmin(np.where(starts > 0, live[starts - 1], 0)))
    ends = np.append(rows, len(trace))
    return Repetition(start, period, ends[start + period * np.arange(count + 1)])


def requests_of(trace: Trace) -> tuple[Array, Array]:
    """Return the rows of the trace at which the job asks or frees, and what it does there, both int64.

    A size is >= 0, a free is minus the number of requests since its ALLOC. A free counts where it is requested (where it is
    completed, if the trace has no request); blocks which are older than the trace do not count.
    """
    action, block = trace.action, trace.block
    known = block >= 0
    is_requested = (action == Action.FREE_REQUESTED) & known
    has_request = np.zeros(len(trace), np.bool_)
    has_request[block[is_requested]] = True
    is_free = is_requested | ((action == Action.FREE_COMPLETED) & known & ~has_request[block])
    rows = np.flatnonzero((action == Action.ALLOC) | is_free)
    number = np.zeros(len(trace), np.int64)
    number[rows] = np.arange(len(rows))
    return rows, np.where(is_free[rows], number[block[rows]] - number[rows], trace.size_bytes[rows])


def longest_square(tokens: npt.ArrayLike, min_period: int = MIN_PERIOD) -> tuple[int, int, int] | None:
    """Return (start, end, period): the repetition which holds the longest immediately repeated subsequence.

    tokens[start : end] has `period`, its shortest, at least twice, and can be extended to neither side. Of equally long
    subsequences the one with the shortest period counts, then the first. None: no period of `min_period` or more repeats; what
    has a shorter period besides (a thousand equal requests) does not count.
    O(n log^2 n + n min_period) time and O(n log n) memory.
    """
    _, names = np.unique(np.asarray(tokens), return_inverse=True)
    n = len(names)
    factors = _Factors(names)
    trivial_end = _trivial_end(names, min_period)
    best: tuple[tuple[int, int, int], int] | None = None
    for left, period in _pairs(n, min_period):
        right = left + period
        same = names[left] == names[right]
        left, right, period = left[same], right[same], period[same]
        ahead = factors.ahead(left, right)
        end = right + ahead
        behind = factors.behind(left, right)
        start = left - behind
        long = (end - start >= 2 * period) & (trivial_end[start] < end)
        if not long.any():
            continue
        start, end, period = start[long], end[long], period[long]
        half = (end - start) // (2 * period) * period
        first = np.lexsort((start, period, -half))[0]
        key = (-int(half[first]), int(period[first]), int(start[first]))
        if best is None or key < best[0]:
            best = key, int(end[first])
    if best is None:
        return None
    (_, shortest, begin), stop = best
    return begin, stop, shortest


def _pairs(n: int, min_period: int) -> Iterator[tuple[Array, Array]]:
    """Yield (k p, p) of all periods p and all k with k p + p < n, as two arrays at a time."""
    low = min_period
    highest = n // 2
    while low <= highest:
        counts = (n - 1) // np.arange(low, highest + 1)
        some = max(int(np.searchsorted(np.cumsum(counts), _CHUNK, side="right")), 1)
        counts = counts[:some]
        period = np.repeat(np.arange(low, low + len(counts)), counts)
        k = np.arange(len(period)) - np.repeat(np.cumsum(counts) - counts, counts)
        yield k * period, period
        low += len(counts)


def _trivial_end(names: npt.NDArray[np.intp], min_period: int) -> Array:
    """Return, for each place, the furthest end to which the tokens from there have one and the same period < `min_period`."""
    n = len(names)
    found = np.arange(1, n + 1)
    for period in range(1, min(min_period, n)):
        differs = np.append(np.where(names[:-period] == names[period:], n, np.arange(n - period)), n - period)
        ends = np.minimum.accumulate(differs[::-1])[::-1] + period
        found[: n - period] = np.maximum(found[: n - period], ends[:-1])
    return found


class _Factors:
    """Names of all substrings whose length is a power of two: equal substrings, and only they, have equal names.

    After Karp, Miller and Rosenberg, "Rapid identification of repeated patterns in strings, trees and arrays" (1972).
    """

    def __init__(self, names: npt.NDArray[np.intp]) -> None:
        self.n = len(names)
        self.levels = [names.astype(np.int32)]
        length = 1
        while 2 * length <= self.n:
            name = self.levels[-1].astype(np.int64)
            pairs = name[:-length] * (self.n + 1) + name[length:]
            self.levels.append(np.unique(pairs, return_inverse=True)[1].astype(np.int32))
            length *= 2

    def ahead(self, left: Array, right: Array) -> Array:
        """Return how many tokens from `left` on are as those from `right` on; left < right."""
        length = np.zeros(len(left), np.int64)
        for level in range(len(self.levels) - 1, -1, -1):
            names = self.levels[level]
            fits = np.flatnonzero(right + length < len(names))
            at = length[fits]
            equal = fits[names[left[fits] + at] == names[right[fits] + at]]
            length[equal] += 1 << level
        return length

    def behind(self, left: Array, right: Array) -> Array:
        """Return how many tokens before `left` are as those before `right`."""
        length = np.zeros(len(left), np.int64)
        for level in range(len(self.levels) - 1, -1, -1):
            names, step = self.levels[level], 1 << level
            fits = np.flatnonzero(left - length - step >= 0)
            at = length[fits] + step
            equal = fits[names[left[fits] - at] == names[right[fits] - at]]
            length[equal] += step
        return length
