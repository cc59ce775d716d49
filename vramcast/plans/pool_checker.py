"""A checker of memory plans, independent of the planners: it plays births and deaths of blocks one by one."""

from __future__ import annotations

from bisect import bisect_left, insort

from vramcast.plans.lifetimes import Lifetimes
from vramcast.plans.pool import PoolPlan

ALIGNMENT_BYTES = 512  # spec: CUDA programming guide, addresses from cudaMalloc are aligned to 256 B; torch's blocks to 512


def check(lifetimes: Lifetimes, plan: PoolPlan) -> list[str]:
    """Return the errors of `plan`, in words; an empty list for a valid plan.

    No two blocks that live at the same time may overlap, none may lie below 0 or above the height, all must be aligned, and
    blocks a period apart must share their place.
    """
    n = len(lifetimes.size_bytes)
    if len(plan.offset_bytes) != n or len(plan.size_bytes) != n:
        return [f"{len(plan.offset_bytes)} offsets and {len(plan.size_bytes)} sizes for {n} blocks"]
    problems = []
    offsets = plan.offset_bytes.tolist()
    for number, (low, room_bytes, needed_bytes) in enumerate(
        zip(offsets, plan.size_bytes.tolist(), lifetimes.size_bytes.tolist(), strict=True)
    ):
        if room_bytes < needed_bytes:
            problems.append(f"block {number} has {room_bytes} B of {needed_bytes}")
        if low < 0 or low + room_bytes > plan.height_bytes:
            problems.append(f"block {number} lies from {low} to {low + room_bytes}, outside of 0 to {plan.height_bytes}")
        if low % ALIGNMENT_BYTES:
            problems.append(f"block {number} lies at {low}, not a multiple of {ALIGNMENT_BYTES}")
    return problems + _overlaps(lifetimes, plan) + _out_of_turn(plan)


def _overlaps(lifetimes: Lifetimes, plan: PoolPlan) -> list[str]:
    """Return the overlaps of blocks that live together; at each moment, blocks are compared in order of offset."""
    events = [(int(time), 1, number) for number, time in enumerate(lifetimes.birth)]
    events += [(int(time), 0, number) for number, time in enumerate(lifetimes.death)]
    events.sort()  # at one time, the dead go first
    offsets, sizes = plan.offset_bytes.tolist(), plan.size_bytes.tolist()
    live: list[tuple[int, int]] = []  # offset and number
    problems = []
    for _, is_birth, number in events:
        entry = (offsets[number], number)
        at = bisect_left(live, entry)
        if not is_birth:
            del live[at]
            continue
        low, high = entry[0], entry[0] + sizes[number]
        for other in (at - 1, at):
            if 0 <= other < len(live):
                start, name = live[other]
                if low < start + sizes[name] and start < high:
                    problems.append(f"block {number} ({low} to {high}) overlaps block {name} (from {start})")
        insort(live, entry)
    return problems


def _out_of_turn(plan: PoolPlan) -> list[str]:
    """Return the blocks that are not at their place of the period before."""
    period = plan.period
    if period is None:
        return []
    if not 0 <= period.first_block < period.first_block + period.n_blocks <= period.end_block <= len(plan.offset_bytes):
        return [f"{period} is not one of {len(plan.offset_bytes)} blocks"]
    offsets = plan.offset_bytes.tolist()
    return [
        f"block {number} lies at {offsets[number]}, and at {offsets[number - period.n_blocks]} a period before"
        for number in range(period.first_block + period.n_blocks, period.end_block)
        if (number - period.first_block) % period.n_blocks not in period.unplanned
        and offsets[number] != offsets[number - period.n_blocks]
    ]
