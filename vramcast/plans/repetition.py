"""Detection of a job's iteration from its allocator requests, without step marks.

    A 4000, A 512, F -2, A 4000, F -1, F -4, A 4000, A 512, F -2, ...      requests: sizes, and frees by distance to their ALLOC
            [warm-up][ iteration ][ iteration ][ iteration ][rest]

An allocation is represented by its size and a free by the distance to its ALLOC, so addresses do not matter. The iteration
is the longest subsequence of more than 100 requests that is immediately repeated. Repetitions inside it (layers) are
shorter, and several iterations that repeat together are separated by their own, shortest, period. After arXiv 1903.06631.

Method: a square of period p is 2 p requests whose second half equals the first. Its first half contains a multiple of p. So
it is enough to examine, for every p, the pairs (k p, k p + p): n ln n of them. The lengths of the matches of the two places
to the right and to the left determine whether a square of period p is there, and how long p continues to repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vramcast.plans.lifetimes import Lifetimes
from vramcast.tracer.format.trace import Action, Trace

MIN_PERIOD: Final = 101  # spec: arXiv 1903.06631 takes periods of more than 100 requests
_CHUNK: Final = 1 << 20  # arbitrary: pairs examined together; about 50 MB

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """Consecutive iterations with the same requests.

    Attributes:
        start: The first request of the first iteration; requests are the rows of `requests_of`.
        period: Requests of an iteration.
        borders: int64[count + 1], the trace row at which each begins, and the row behind the last: iteration k is
            borders[k] <= row < borders[k + 1]. They lie where few bytes live, not necessarily where a step begins.
    """

    start: int
    period: int
    borders: Array

    @property
    def count(self) -> int:
        """Return the number of iterations, 2 or more."""
        return len(self.borders) - 1


def find(trace: Trace) -> Repetition | None:
    """Return the iteration of `trace`, None if nothing of more than 100 requests is immediately repeated.

    Limits: a job traced for few steps does not repeat enough; gradients, for example, are freed a step after their
    allocation, at another distance after a step that creates the optimizer's state. Four steps show two equal ones.
    """
    rows, tokens = requests_of(trace)
    found = longest_square(tokens)
    if found is None:
        return None
    start, end, period = found
    count = (end - start) // period
    live = Lifetimes.of(trace).live()
    # Any start followed by `count` iterations is valid; take the one where the fewest bytes cross the border.
    starts = rows[start : end - count * period + 1]
    start += int(np.argmin(np.where(starts > 0, live[starts - 1], 0)))
    ends = np.append(rows, len(trace))
    return Repetition(start, period, ends[start + period * np.arange(count + 1)])


def requests_of(trace: Trace) -> tuple[Array, Array]:
    """Return the rows of the trace at which the job allocates or frees, and the tokens of these requests, both int64.

    A size is >= 0, a free is minus the number of requests since its ALLOC. A free counts at its request (at its completion,
    if the trace has no request); blocks older than the trace do not count.
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
    """Return (start, end, period) of the repetition that contains the longest immediately repeated subsequence.

    tokens[start : end] has `period`, its shortest, at least twice, and cannot be extended to either side. Among equally
    long subsequences, the one with the shortest period counts, then the first. None: no period of `min_period` or more
    repeats; sequences that also have a shorter period (a thousand equal requests) do not count. O(n log^2 n + n min_period)
    time and O(n log n) memory.
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
    """Return, for each place, the furthest end up to which the tokens from there have one period < `min_period`."""
    n = len(names)
    found = np.arange(1, n + 1)
    for period in range(1, min(min_period, n)):
        differs = np.append(np.where(names[:-period] == names[period:], n, np.arange(n - period)), n - period)
        ends = np.minimum.accumulate(differs[::-1])[::-1] + period
        found[: n - period] = np.maximum(found[: n - period], ends[:-1])
    return found


class _Factors:
    """Names of all substrings with a power of two as length: exactly the equal substrings have equal names.

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
        """Return the number of equal tokens from `left` and `right` on; left < right."""
        length = np.zeros(len(left), np.int64)
        for level in range(len(self.levels) - 1, -1, -1):
            names = self.levels[level]
            fits = np.flatnonzero(right + length < len(names))
            at = length[fits]
            equal = fits[names[left[fits] + at] == names[right[fits] + at]]
            length[equal] += 1 << level
        return length

    def behind(self, left: Array, right: Array) -> Array:
        """Return the number of equal tokens before `left` and `right`."""
        length = np.zeros(len(left), np.int64)
        for level in range(len(self.levels) - 1, -1, -1):
            names, step = self.levels[level], 1 << level
            fits = np.flatnonzero(left - length - step >= 0)
            at = length[fits] + step
            equal = fits[names[left[fits] - at] == names[right[fits] - at]]
            length[equal] += step
        return length
