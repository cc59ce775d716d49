"""A swap plan as a schedule for hooks on saved tensors, and the cost of the hooks.

A swap plan names blocks and microseconds; hooks know only their own calls. So a block leaves at the first call behind the end
of its copy out, and returns at the last unpack before the begin of its copy in. A copy out begins at the pack: what is saved
does not change any more.
"""

from __future__ import annotations

import bisect
import functools
import operator
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from vramcast.plans.swap import SwapPlan
from vramcast.plans.swap_schedule import Link
from vramcast.tracer.format.trace import SAVED, Action, Trace
from vramcast.tracer.protocol.swap_rounds import SavedMove, SavedRound
from vramcast.tracer.recording.emptied_cache import positions


@dataclass(slots=True)
class SavedCalls:
    """The calls of one round: first the packs, then the unpacks, each with the storage's number.

    Attributes:
        size_bytes: Of each storage.
        block: ALLOC row of each storage; -1: unknown.
        rows: Of each call.
        saved: Storage of each call.
        n_packs: Number of packs.
        kept: Storages that the hooks moved but others held.
    """

    size_bytes: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    n_packs: int = 0
    kept: set[int] = field(default_factory=set)

    def add(self, row: int, kind: str, saved: int, size_bytes: int, block: int) -> None:
        """Add a call, or note that others hold a storage."""
        if kind == "kept":
            self.kept.add(saved)
            return
        self.rows.append(row)
        self.saved.append(saved)
        self.n_packs += kind == "pack"
        if saved == len(self.size_bytes):
            self.size_bytes.append(size_bytes)
            self.block.append(block)


class _Wait(NamedTuple):
    """A wait of the main stream at call `at` of a round, for a copy out, or for a copy in that began at `begun_us`."""

    round: int
    saved: int
    at: int
    is_out: bool
    begun_us: int
    wait_us: int


@dataclass(frozen=True, slots=True)
class SavedTensors:
    """The calls of the hooks in one step of a trace.

    Attributes:
        rounds: By round.
        time_us: Time of each row since the step's first operator began.
    """

    rounds: tuple[SavedCalls, ...]
    time_us: Sequence[int]

    @classmethod
    def of(cls, trace: Trace, step: int) -> SavedTensors:
        """Return the calls in step `step` (from 0) of a trace that was made with hooks."""
        rows, calls = np.flatnonzero(trace.step == step), trace.header.get(SAVED, ())
        allocs = np.append(np.flatnonzero(trace.action == Action.ALLOC), -1)  # the last one: unknown
        behind = np.searchsorted(positions(trace), [call[0] for call in calls], side="right").tolist()
        rounds: dict[int, SavedCalls] = {}
        for row, (_, kind, number, saved, size_bytes, request) in zip(behind, calls, strict=True):
            if len(rows) and rows[0] <= row <= rows[-1]:
                rounds.setdefault(number, SavedCalls()).add(row, kind, saved, size_bytes, int(allocs[request]))
        accesses = np.flatnonzero(trace.is_access() & (trace.step == step))
        begin_us = int(trace.time_us[accesses[0]]) if len(accesses) else 0
        return cls(tuple(rounds.values()), (np.append(trace.time_us, trace.time_us[-1:]) - begin_us).tolist())

    def blocks(self, without: Collection[tuple[int, int]] = ()) -> frozenset[int]:
        """Return the blocks that hooks can move, without storages given as (round, number)."""
        return frozenset(
            block
            for number, this in enumerate(self.rounds)
            for saved, block in enumerate(this.block)
            if block >= 0 and (number, saved) not in without
        )

    def kept(self) -> set[tuple[int, int]]:
        """Return the storages that the hooks moved but others held, as (round, number)."""
        return {(number, saved) for number, this in enumerate(self.rounds) for saved in this.kept}

    def follow(self, plan: SwapPlan) -> tuple[SavedRound, ...]:
        """Return the schedule of the hooks for the blocks that `plan` moves."""
        waits = sorted((wait.row, wait.wait_us) for wait in plan.waits)
        rows = [row for row, _ in waits]
        waited = np.cumsum([0, *(wait_us for _, wait_us in waits)]).tolist()
        left = {move.block: move for move in plan.schedule}
        found = []
        for this in self.rounds:
            times = [self.time_us[row] + waited[bisect.bisect_left(rows, row)] for row in this.rows]
            moves, free_us = [], 0
            for saved, block in enumerate(this.block):
                n, at = this.n_packs, this.saved.index(saved)
                if block not in left or saved not in this.saved[n:]:
                    continue
                move, needed = left.pop(block), this.saved.index(saved, n)
                free_us = max(free_us, times[at]) + plan.link.out_us(this.size_bytes[saved])
                # Copies out are in the order of packs, the plan's in the order in which blocks are ready.
                leaves = bisect.bisect_left(times, move.out_end_us if plan.waits else max(move.out_end_us, free_us))
                returns = bisect.bisect_right(times, move.in_start_us) - 1
                if leaves < needed:
                    moves.append(SavedMove(saved, leaves, min(max(returns, leaves, n), needed) - n))
            found.append(SavedRound(tuple(this.size_bytes), tuple(moves)))
        return tuple(found)

    def overhead_us(self, rounds: Sequence[SavedRound], link: Link) -> int:
        """Return how long the main stream waits for copies in a step, if operators take the trace's time."""
        return sum(wait.wait_us for wait in self._waits(rounds, link))

    def without_waiting(self, rounds: Sequence[SavedRound], link: Link) -> tuple[SavedRound, ...]:
        """Return `rounds` with later leaves and earlier returns, and without the moves for which that is not enough."""
        found = list(rounds)
        while (wait := next(self._waits(found, link), None)) is not None:
            this = self.rounds[wait.round]
            times, n = [self.time_us[row] for row in this.rows], this.n_packs
            moves = {move.saved: move for move in found[wait.round].moves}
            old = moves.pop(wait.saved)
            if wait.is_out:
                new = replace(old, leaves=bisect.bisect_left(times, times[wait.at] + wait.wait_us))
            else:
                new = replace(old, returns=bisect.bisect_right(times, wait.begun_us - wait.wait_us) - 1 - n)
            needed = this.saved.index(wait.saved, n)
            if max(new.leaves, n) <= new.returns + n <= needed and new.leaves < needed and new != old:
                moves[wait.saved] = new
            found[wait.round] = replace(found[wait.round], moves=tuple(moves[saved] for saved in sorted(moves)))
        return tuple(found)

    def _waits(self, rounds: Sequence[SavedRound], link: Link) -> Iterator[_Wait]:
        """Yield each wait of the main stream for a copy."""
        late = out_free = in_free = 0
        for number, (this, plan) in enumerate(zip(self.rounds, rounds, strict=True)):
            moves = {move.saved: move for move in plan.moves}
            here: dict[int, int] = {}  # the end of the copy out of blocks that have not left
            away: set[int] = set()
            back: dict[int, tuple[int, int]] = {}  # begin and end of the copy in
            for at, (row, saved) in enumerate(zip(this.rows, this.saved, strict=True)):
                now = self.time_us[row]
                for one in [one for one in here if moves[one].leaves <= at]:
                    away.add(one)
                    if (wait_us := here.pop(one) - now - late) > 0:
                        yield _Wait(number, one, at, True, now, wait_us)
                        late += wait_us
                if at < this.n_packs:
                    if saved in moves and this.saved.index(saved) == at:
                        out_free = here[saved] = max(out_free, now + late) + link.out_us(this.size_bytes[saved])
                    continue
                for one in [one for one in away if moves[one].returns <= at - this.n_packs or one == saved]:
                    begun_us = max(in_free, now + late)
                    in_free = begun_us + link.in_us(this.size_bytes[one])
                    back[one] = begun_us, in_free
                    away.remove(one)
                begun_us, end_us = back.get(saved, (0, 0))
                if (wait_us := end_us - now - late) > 0:
                    yield _Wait(number, saved, at, False, begun_us, wait_us)
                    late += wait_us


def host_bytes(rounds: Sequence[SavedRound]) -> int:
    """Return the pinned memory of the hooks' buffers: PyTorch rounds each up to a power of two."""
    sizes = (Counter(this.size_bytes[move.saved] for move in this.moves) for this in rounds)
    most: Counter[int] = functools.reduce(operator.or_, sizes, Counter())
    return sum(count * (1 << (size_bytes - 1).bit_length()) for size_bytes, count in most.items())


def moved_bytes(rounds: Sequence[SavedRound]) -> int:
    """Return the bytes that the hooks copy out in a step, and in again."""
    return sum(this.size_bytes[move.saved] for this in rounds for move in this.moves)
