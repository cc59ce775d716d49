"""A swap plan as a schedule for hooks: which calls it names, what it costs, and which storages it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plans.access_traces import MIB, chain
from vramcast.plans import saved_tensors, swap
from vramcast.plans.saved_tensors import SavedTensors
from vramcast.plans.swap_schedule import Link
from vramcast.tracer.format.trace import SAVED, Action, Trace
from vramcast.tracer.protocol.swap_rounds import SavedMove, SavedRound

_LINK = Link("test", 1e9, 1e9, 0.0, 0.0)  # a MiB takes 1,049 us
_STEP = 1


def saving(n_layers: int, takes_us: int) -> Trace:
    """Return a job of equal layers of 8 MiB that saves the activation of each, in two steps."""
    trace, _ = chain([8] * n_layers, takes_us, state_mib=8)
    is_alloc, is_free = trace.action == Action.ALLOC, trace.action == Action.FREE_REQUESTED
    position, request = np.cumsum(is_alloc | is_free), np.cumsum(is_alloc) - 1
    calls: list[list[object]] = []
    saved: dict[int, tuple[int, int]] = {}
    for row in np.flatnonzero((is_alloc | is_free) & (trace.step >= 0)).tolist():
        step, block = int(trace.step[row]), int(trace.block[row])
        if is_alloc[row]:
            number = sum(known == step for known, _ in saved.values())
            saved[block] = step, number
            calls.append([int(position[row]), "pack", step, number, 8 * MIB, int(request[row])])
        else:
            calls.append([int(position[row]) - 1, "unpack", step, saved[block][1], 0, -1])
    return replace(trace, header={**trace.header, SAVED: calls})


def test_calls_of_a_step_name_storages_and_their_blocks() -> None:
    trace = saving(4, 10_000)
    (this,) = SavedTensors.of(trace, _STEP).rounds
    assert (this.saved, this.n_packs) == ([0, 1, 2, 3, 3, 2, 1, 0], 4)
    assert this.size_bytes == [8 * MIB] * 4
    assert [int(trace.size_bytes[block]) for block in this.block] == [8 * MIB] * 4


def test_only_saved_blocks_move_and_nothing_waits() -> None:
    trace = saving(8, 10_000)
    saved = SavedTensors.of(trace, _STEP)
    plan = swap.plan(trace, link=_LINK, among=saved.blocks())
    assert {move.block for move in plan.schedule} <= saved.blocks()
    (this,) = rounds = saved.follow(plan)
    assert plan.peak_bytes < plan.peak_live_bytes
    assert this.moves
    assert saved.overhead_us(rounds, _LINK) == 0
    assert saved_tensors.moved_bytes(rounds) == plan.moved_bytes


def test_excluded_storages_stay() -> None:
    trace = saving(8, 10_000)
    saved = SavedTensors.of(trace, _STEP)
    without = {(0, number) for number in range(8)}
    assert saved.blocks(without) == frozenset()
    plan = swap.plan(trace, link=_LINK, among=saved.blocks(without))
    assert saved.follow(plan)[0].moves == ()


def test_waits_for_copies_that_are_too_slow() -> None:
    saved = SavedTensors.of(saving(2, 1_000), _STEP)
    # out: from 0 to 8,389 us, but dropped at the second pack, at 1,000; in: begins where the block is needed
    rounds = (SavedRound((8 * MIB, 8 * MIB), (SavedMove(0, 1, 1),)),)
    one_way = _LINK.out_us(8 * MIB)
    times = [saved.time_us[row] for row in saved.rounds[0].rows]
    assert saved.overhead_us(rounds, _LINK) == one_way - (times[1] - times[0]) + one_way


def test_without_waiting_leaves_later_and_returns_earlier() -> None:
    saved = SavedTensors.of(saving(4, 10_000), _STEP)
    # The copy out of the first storage ends at 8,389 us, so it may leave at the second pack; its copy in begins too late.
    (this,) = saved.without_waiting((SavedRound((8 * MIB,) * 4, (SavedMove(0, 1, 3),)),), _LINK)
    assert this.moves == (SavedMove(0, 1, 2),)
    assert saved.overhead_us((this,), _LINK) == 0


@given(
    takes_us=st.integers(1, 30_000),
    moves=st.dictionaries(st.integers(0, 7), st.tuples(st.integers(0, 15), st.integers(0, 8))),
)
def test_without_waiting_never_waits(takes_us: int, moves: dict[int, tuple[int, int]]) -> None:
    saved = SavedTensors.of(saving(8, takes_us), _STEP)
    planned = [
        SavedMove(one, min(max(leaves, one + 1), 14 - one), min(max(returns, 0), 7 - one))
        for one, (leaves, returns) in moves.items()
    ]
    rounds = saved.without_waiting((SavedRound((8 * MIB,) * 8, tuple(planned)),), _LINK)
    assert saved.overhead_us(rounds, _LINK) == 0
    assert {move.saved for move in rounds[0].moves} <= moves.keys()


@pytest.mark.parametrize(("sizes", "expected"), [((5 * MIB,), 8 * MIB), ((8 * MIB, 3 * MIB), 12 * MIB)])
def test_buffers_on_the_host_are_powers_of_two(sizes: tuple[int, ...], expected: int) -> None:
    round_ = SavedRound(sizes, tuple(SavedMove(n, n, n) for n in range(len(sizes))))
    assert saved_tensors.host_bytes([round_, round_]) == expected
