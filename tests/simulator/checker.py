"""A checker for outcomes of the allocator simulator that shares no rule with it: placements are checked as plain intervals.

A block is a range of addresses over a span of requests. No two may share a byte at one time; each lies in a held segment of
its own kind; all other bytes are waiting blocks or gaps, and the sums must hold after every request. The checker does not
decide whether torch would place blocks like this (tests/simulator/test_against_torch.py does), only whether an allocator
could. It is slow on purpose: everything is measured again each time. `overlaps` also checks the placements of any other
program.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.simulator.card import PAGE_BYTES, Card
from vramcast.simulator.outcome import Outcome
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.rules import MIN_BLOCK_BYTES, N_INTERVALS, SMALL_BYTES, SMALL_SEGMENT_BYTES
from vramcast.simulator.settings import NO_LIMIT, Settings
from vramcast.tracer.format.trace import Action


class Rule(StrEnum):
    """A rule that an outcome may break."""

    BLOCK_OVERLAP = "two blocks share memory at one time"
    BLOCK_OUTSIDE = "a block lies in no held segment of its stream, size class and pool"
    BLOCK_SIZE = "a block is smaller than its rounded request"
    ALIGNMENT = "a block's address is not a multiple of 512 B, or a segment's not of 2 MiB"
    SEGMENT_OVERLAP = "two segments share memory"
    SEGMENT_NOT_HELD = "a released segment was not held, or had another size"
    SEGMENT_IN_USE = "a released segment has a live or waiting block in it"
    EVENTS = "an event that its request cannot have caused, or a missing event"
    ALLOCATED = "allocated is not the sum of live blocks"
    RESERVED = "reserved is not the sum of held segments"
    CONSERVATION = "reserved is not requests, rounding, remainders, waiting blocks and gaps"
    CARD = "segments take more pages than the card has"
    FRACTION = "segments take more than the memory fraction allows"
    STATISTICS = "a peak or a count differs from the one observed"


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken rule, and the row of the request that breaks it."""

    rule: Rule
    request: int
    detail: str


def overlaps(
    address: npt.ArrayLike, size_bytes: npt.ArrayLike, begin: npt.ArrayLike, end: npt.ArrayLike
) -> list[tuple[int, int]]:
    """Return the pairs of blocks that share a byte at the same time, as rows, the lower one first.

    Args:
        address: Of each block, in bytes from any origin.
        size_bytes: Of each block.
        begin: When each block begins to live, on any clock of whole numbers.
        end: When it ends: a block that begins at this moment may take its place.
    """
    low, size, first, last = (np.asarray(column, np.int64) for column in (address, size_bytes, begin, end))
    high = low + size
    pairs = []
    for row in range(len(low)):
        shares_bytes = np.maximum(low[:row], low[row]) < np.minimum(high[:row], high[row])
        shares_time = np.maximum(first[:row], first[row]) < np.minimum(last[:row], last[row])
        pairs += [(other, row) for other in np.flatnonzero(shares_bytes & shares_time).tolist()]
    return pairs


def check(requests: Requests, outcome: Outcome, settings: Settings, card: Card) -> list[Broken]:
    """Return every rule broken by the outcome of `requests`, with columns, in order of requests; none for a sound one.

    Limit: an outcome counts retries, but does not record the requests that made them. If segments may move for other
    reasons too (they expand, garbage is collected, large blocks are never split), memory of a waiting block may be reused
    as long as the count of retries allows it.
    """
    return sorted(_Judge(requests, outcome, settings, card).play(), key=lambda broken: broken.request)


_Kind: TypeAlias = tuple[int, bool, int]  # stream, whether large, private pool: of a segment and of every block in it
_GIVEN_BACK = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(slots=True)
class _Block:
    start: int
    end: int
    requested_bytes: int
    rounded_bytes: int
    begin: int
    elsewhere: bool = False  # whether another stream also uses it


class _Judge:
    def __init__(self, requests: Requests, outcome: Outcome, settings: Settings, card: Card) -> None:
        self.requests, self.outcome, self.settings, self.card = requests, outcome, settings, card
        given = (outcome.address, outcome.block_bytes, outcome.allocated_bytes, outcome.reserved_bytes)
        self.address, self.block_bytes, self.allocated, self.reserved = (c.tolist() for c in given if c is not None)
        # Whether a segment can be released for one reason only.
        self.is_sure = not (settings.expandable_segments or settings.garbage_collection_threshold) and (
            settings.max_split_bytes == NO_LIMIT
        )
        self.broken: list[Broken] = []
        self.held: list[tuple[int, int, _Kind]] = []  # start, end; by address
        self.live: dict[int, _Block] = {}
        self.waiting: dict[int, _Block] = {}
        self.over: list[tuple[_Block, int]] = []  # with the request after which its memory is free
        self.recording: list[int] = []
        self.n_retries = 0
        self.taken_bytes = 0  # outside the allocator
        self.seen = dict.fromkeys(("allocated", "n_allocated", "reserved", "n_segments", "active", "requested"), 0)

    def play(self) -> list[Broken]:
        outcome, n = self.outcome, len(self.requests)
        causes = outcome.events["request"]
        for row in range(n):
            self._request(row, outcome.events[causes == row].tolist())
            if self.allocated[row] < 0:  # the job ends here
                self._expect(row == outcome.stopped_at, Rule.ALLOCATED, row, "the request was not played")
                n = row + 1
                break
            self._add_up(row)
        in_order = bool((np.diff(causes, prepend=0, append=n - 1) >= 0).all())
        self._expect(in_order, Rule.EVENTS, n, "events are not in the order of their requests")
        blocks = [*self.over, *((block, n) for block in [*self.live.values(), *self.waiting.values()])]
        columns = zip(*((b.start, b.end - b.start, b.begin, over) for b, over in blocks), strict=True)
        for pair in overlaps(*columns) if blocks else ():
            one, other = sorted(blocks[row][0].begin for row in pair)
            self._expect(False, Rule.BLOCK_OVERLAP, other, f"with the block of request {one}")
        self._expect_statistics(n)
        return self.broken

    def _expect(self, holds: bool, rule: Rule, row: int, detail: str) -> None:
        if not holds:
            self.broken.append(Broken(rule, row, detail))

    # ---------------------------------------------------------------------------------------- one request
    def _request(self, row: int, events: list[tuple[int, ...]]) -> None:
        kind, name, operand = (
            int(column[row]) for column in (self.requests.kind, self.requests.block, self.requests.size_bytes)
        )
        if kind in (RequestKind.MALLOC, RequestKind.TRY):
            self._malloc(row, operand, events)
            return
        if kind == RequestKind.RECORD and name in self.live:
            self.live[name].elsewhere |= bool(self.requests.stream[row] != self.requests.stream[name])
        elif kind in (RequestKind.FREE, RequestKind.RETIRE) and name in self.live:
            block = self.waiting[name] = self.live.pop(name)
            if kind == RequestKind.FREE and not block.elsewhere:
                self._complete(row, name)
        elif kind == RequestKind.COMPLETE and name in self.waiting:
            self._complete(row, name)
        elif kind == RequestKind.EMPTY:
            self._complete(row, *self.waiting)
        elif kind == RequestKind.BEGIN_POOL:
            self.recording.append(operand)
        elif kind == RequestKind.END_POOL:
            self.recording.remove(operand)
        elif kind == RequestKind.TAKE and self.block_bytes[row] != 0:  # 0: there was not enough
            self.taken_bytes += operand
            self._expect_room(row)
        for action, _, start, size_bytes, stream in events:
            allowed = _GIVEN_BACK if kind == RequestKind.EMPTY else (Action.OOM,) if kind == RequestKind.TAKE else ()
            self._expect(action in allowed, Rule.EVENTS, row, Action(action).name)
            if action in _GIVEN_BACK:
                self._give_back(row, action, start, start + size_bytes, stream)

    def _malloc(self, row: int, requested_bytes: int, events: list[tuple[int, ...]]) -> None:
        size_bytes, start, rounded_bytes = self.block_bytes[row], self.address[row], _rounded(self.settings, requested_bytes)
        kind = (int(self.requests.stream[row]), rounded_bytes > SMALL_BYTES, self.recording[0] if self.recording else 0)
        given_back = [(at, at + segment_bytes) for action, _, at, segment_bytes, _ in events if action in _GIVEN_BACK]
        retried = size_bytes == 0 or self._has_retried(given_back, (start, start + size_bytes))
        captures = self.recording and self.requests.rules.pools_capture
        if not captures and (retried or not self.requests.waits):
            self.n_retries += retried
            self._complete(row, *self.waiting)
        n_ooms = sum(event[0] == Action.OOM for event in events)
        self._expect(n_ooms == (size_bytes == 0), Rule.EVENTS, row, f"{n_ooms} OOMs for a block of {size_bytes} B")
        for action, _, at, segment_bytes, stream in events:
            if action in _GIVEN_BACK:
                self._give_back(row, action, at, at + segment_bytes, stream)
            elif action != Action.OOM:
                self._expect(stream == kind[0], Rule.EVENTS, row, f"a segment of stream {stream}")
                self._take(row, action, at, at + segment_bytes, kind)
        if size_bytes == 0:
            return
        end = start + size_bytes
        self._expect(size_bytes >= rounded_bytes, Rule.BLOCK_SIZE, row, f"{size_bytes} B for {rounded_bytes} B")
        self._expect(start % MIN_BLOCK_BYTES == 0, Rule.ALIGNMENT, row, f"block at {start:#x}")
        inside = any(low <= start and end <= high and kind == of for low, high, of in self.held)
        self._expect(inside, Rule.BLOCK_OUTSIDE, row, f"block at {start:#x} of (stream, large, pool) {kind}")
        self.live[row] = _Block(start, end, requested_bytes, rounded_bytes, row)

    def _has_retried(self, given_back: list[tuple[int, int]], block: tuple[int, int]) -> bool:
        """Return whether everything was released to serve this request: then all streams have been waited for."""
        if self.is_sure:
            return bool(given_back)
        again = [*given_back, block]
        reused = any(b.start < high and low < b.end for b in self.waiting.values() for low, high in again)
        return reused and self.n_retries < self.outcome.statistics.n_retries

    def _complete(self, row: int, *names: int) -> None:
        self.over += [(self.waiting.pop(name), row) for name in names]

    # ---------------------------------------------------------------------------------------- segments
    def _take(self, row: int, action: int, start: int, end: int, kind: _Kind) -> None:
        self._expect(start % PAGE_BYTES == 0, Rule.ALIGNMENT, row, f"segment at {start:#x}")
        is_new = all(end <= low or high <= start for low, high, _ in self.held)
        self._expect(is_new, Rule.SEGMENT_OVERLAP, row, f"segment at {start:#x}")
        if action == Action.SEGMENT_MAP:  # adjacent ranges are one
            for held in [held for held in self.held if held[2] == kind and (held[1] == start or held[0] == end)]:
                self.held.remove(held)
                start, end = min(start, held[0]), max(end, held[1])
        insort(self.held, (start, end, kind))
        self._see(reserved=self._held_bytes(), n_segments=len(self.held))
        self._expect_room(row)
        if self.settings.memory_fraction < 1:
            allowed_bytes = int(self.settings.memory_fraction * self.card.total_bytes)
            if self.settings.expandable_segments:  # the limit applies to the request, not to the rest of its last page
                allowed_bytes += self.settings.large_segment_bytes if kind[1] else SMALL_SEGMENT_BYTES
            self._expect(self._held_bytes() <= allowed_bytes, Rule.FRACTION, row, f"{self._held_bytes()} of {allowed_bytes} B")

    def _expect_room(self, row: int) -> None:
        used_bytes = self._held_bytes(PAGE_BYTES) + self.taken_bytes
        self._expect(used_bytes <= self.card.capacity_bytes, Rule.CARD, row, f"{used_bytes} of {self.card.capacity_bytes} B")

    def _give_back(self, row: int, action: int, start: int, end: int, stream: int) -> None:
        used = any(b.start < end and start < b.end for b in [*self.live.values(), *self.waiting.values()])
        self._expect(not used, Rule.SEGMENT_IN_USE, row, f"segment at {start:#x}")
        for held in self.held:
            low, high, kind = held
            cut = low <= start and end <= high if action == Action.SEGMENT_UNMAP else (low, high) == (start, end)
            if cut and kind[0] == stream:
                self.held.remove(held)
                self.held += [(a, b, kind) for a, b in ((low, start), (end, high)) if a < b]
                self.held.sort()
                return
        self._expect(False, Rule.SEGMENT_NOT_HELD, row, f"{end - start} B at {start:#x}")

    def _held_bytes(self, unit_bytes: int = 1) -> int:
        return sum(-((start - end) // unit_bytes) * unit_bytes for start, end, _ in self.held)

    # ---------------------------------------------------------------------------------------- sums
    def _add_up(self, row: int) -> None:
        live, waiting = list(self.live.values()), list(self.waiting.values())
        held_bytes, live_bytes, waiting_bytes = self._held_bytes(), _bytes(live), _bytes(waiting)
        requested_bytes = sum(b.requested_bytes for b in live)
        rounding_bytes = sum(b.rounded_bytes - b.requested_bytes for b in live)
        remainder_bytes = sum(b.end - b.start - b.rounded_bytes for b in live)
        parts = (requested_bytes, rounding_bytes, remainder_bytes, waiting_bytes, self._gap_bytes())
        self._expect(self.allocated[row] == live_bytes, Rule.ALLOCATED, row, f"{live_bytes} B are live")
        self._expect(self.reserved[row] == held_bytes, Rule.RESERVED, row, f"{held_bytes} B are held")
        self._expect(sum(parts) == held_bytes, Rule.CONSERVATION, row, f"{held_bytes} B are held, the parts are {parts}")
        waiting_requests_bytes = sum(b.requested_bytes for b in waiting)
        self._see(allocated=live_bytes, n_allocated=len(live))
        self._see(active=live_bytes + waiting_bytes, requested=requested_bytes + waiting_requests_bytes)

    def _gap_bytes(self) -> int:
        """Return the free bytes of all held segments, measured from one block to the next."""
        blocks = sorted((b.start, b.end) for b in [*self.live.values(), *self.waiting.values()])
        gap_bytes = 0
        for low, high, _ in self.held:
            inside = blocks[bisect_left(blocks, (low, 0)) : bisect_left(blocks, (high, 0))]
            edges = [(low, low), *inside, (high, high)]
            gap_bytes += sum(max(after[0] - before[1], 0) for before, after in pairwise(edges))
        return gap_bytes

    def _see(self, **values: int) -> None:
        self.seen |= {name: max(self.seen[name], value) for name, value in values.items()}

    def _expect_statistics(self, row: int) -> None:
        actions = self.outcome.events["action"]
        if self.settings.expandable_segments:
            self.seen["n_segments"] = 0  # expandable segments are not counted
        if self.requests.waits and self.outcome.statistics.n_retries and not self.is_sure:
            del self.seen["active"], self.seen["requested"]  # see the limit of `check`
        counted = {name: getattr(self.outcome.statistics, name).peak for name in self.seen}
        for name, taken in (
            ("n_device_allocs", (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)),
            ("n_device_frees", _GIVEN_BACK),
            ("n_ooms", (Action.OOM,)),
        ):
            self.seen[name] = int(np.isin(actions, taken).sum())
            counted[name] = getattr(self.outcome.statistics, name)
        for name, value in counted.items():
            self._expect(value == self.seen[name], Rule.STATISTICS, row, f"{name} is {value}, {self.seen[name]} was seen")


def _bytes(blocks: list[_Block]) -> int:
    return sum(block.end - block.start for block in blocks)


def _rounded(settings: Settings, size_bytes: int) -> int:
    """Return the least size of a block for a request, in plain steps."""
    interval, power = 0, 1
    while interval < N_INTERVALS - 1 and 2 << (20 + interval) <= size_bytes:
        interval += 1
    while 2 * power <= size_bytes:
        power *= 2
    divisions = settings.roundup_divisions[interval]
    step = power // divisions if divisions > 1 and size_bytes > MIN_BLOCK_BYTES * divisions else MIN_BLOCK_BYTES
    return max((size_bytes + step - 1) // step * step, MIN_BLOCK_BYTES)
