"""A checker of swap plans: plays the step again, with its waits and copies, and examines every instant.

It reads the trace itself, row by row, and shares nothing with the planner except the plan's own classes. Three rounds are
laid one behind the other, because a copy may begin in the step before and end in the one after; the middle one counts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from vramcast.core.brief import brief
from vramcast.plans.swap import Move, SwapPlan
from vramcast.tracer.format.trace import Action, Trace

_MAX_FAULTS = 20  # arbitrary: enough to see what is wrong


@brief
@dataclass(frozen=True, slots=True)
class SwapCheck:
    """The result of playing a plan.

    Attributes:
        peak_bytes: Most live bytes at any instant, including blocks in flight.
        overhead_us: Extra time of the step.
        faults: Errors of the plan, in words; none if it is proved.
    """

    peak_bytes: int
    overhead_us: int
    faults: tuple[str, ...]


@dataclass(slots=True)
class _Operator:
    row: int
    blocks: set[int]
    most_bytes: int  # live while it runs
    before_bytes: int  # live while it waits
    begin_us: int
    end_us: int


@dataclass(slots=True)
class _Block:
    size_bytes: int
    first_row: int
    last_row: int  # the end of the trace if it is never freed
    operators: list[_Operator] = field(default_factory=list)


def check(trace: Trace, plan: SwapPlan) -> SwapCheck:
    """Play `plan` on its step of `trace` and return the result.

    The checks are: no access to a block that is out or in flight; one copy at a time in each direction, none faster than
    the link; a block is copied while it lives, and at most once per step; the limit at every instant; the plan's own
    figures.
    """
    faults: list[str] = []
    operators, blocks, rows = _read(trace, plan.step - 1)
    overhead_us = _lay_out(operators, plan, faults)
    period_us = operators[-1].end_us
    for move in plan.schedule:
        _check_move(move, plan, blocks, rows, period_us, faults)
    names = [move.block for move in plan.schedule]
    if len(set(names)) < len(names):
        faults.append("a block is moved twice in one step")
    _check_stream("out", [(m.out_start_us, m.out_end_us) for m in plan.schedule], period_us, faults)
    _check_stream("in", [(m.in_start_us, m.in_end_us) for m in plan.schedule], period_us, faults)
    peak_bytes = _peak(operators, plan, period_us)
    if plan.limit_bytes is not None and plan.feasible and peak_bytes > plan.limit_bytes:
        faults.append(f"{peak_bytes} bytes live at once, the limit is {plan.limit_bytes}")
    if plan.feasible:
        said = (plan.peak_bytes, plan.overhead_ms, plan.moved_bytes)
        found = (peak_bytes, overhead_us / 1000, sum(move.size_bytes for move in plan.schedule))
        if said != found:
            faults.append(f"the plan claims (peak, overhead, moved) {said}, found {found}")
    elif plan.schedule or plan.waits:
        faults.append("an infeasible plan has a schedule")
    return SwapCheck(peak_bytes, overhead_us, tuple(faults[:_MAX_FAULTS]))


def _read(trace: Trace, step: int) -> tuple[list[_Operator], dict[int, _Block], tuple[int, int]]:
    """Return the step's operators with the trace's times, all blocks, its first row, and the next step's first access."""
    action, block, time_us = trace.action.tolist(), trace.block.tolist(), trace.time_us.tolist()
    blocks: dict[int, _Block] = {}
    live: list[int] = []
    for row in range(len(trace)):
        now = live[-1] if live else 0
        if action[row] == Action.ALLOC:
            blocks[row] = _Block(max((int(trace.size_bytes[row]) + 511) // 512, 1) * 512, row, len(trace))
            now += blocks[row].size_bytes
        elif action[row] == Action.FREE_COMPLETED and block[row] >= 0:
            blocks[block[row]].last_row = row
            now -= blocks[block[row]].size_bytes
        live.append(now)
    rows = [row for row in range(len(trace)) if trace.step[row] == step]
    groups: list[list[int]] = []
    for row in rows:
        if action[row] in (Action.READ, Action.WRITE):
            if not groups or time_us[groups[-1][0]] != time_us[row]:
                groups.append([])
            groups[-1].append(row)
    operators: list[_Operator] = []
    begin = rows[0]
    for number, group in enumerate(groups):
        asked = next((row for row in range(begin, group[-1]) if action[row] == Action.ALLOC), group[-1])
        left_bytes = live[groups[number - 1][-1]]  # by the operator before; for the first one, by the last
        before_bytes = min(left_bytes, live[asked - 1] if asked else 0)
        later = (time_us[row] for row in range(group[-1] + 1, len(trace)) if time_us[row] > time_us[group[0]])
        end_us = next(later, None)
        if end_us is None:
            end_us = max(trace.header.get("clock", {}).get("end_us", 0), time_us[group[0]])
        most_bytes = max(live[asked : group[-1] + 1])
        touched = {block[row] for row in group}
        operators.append(_Operator(group[0], touched, most_bytes, before_bytes, time_us[group[0]], end_us))
        for name in touched:
            blocks[name].operators.append(operators[-1])
        begin = group[-1] + 1
    # A block that lives until the next step's first access also belongs to that step; the last step has no next one.
    last = groups[-1][-1]
    following = next((row for row in range(last + 1, len(trace)) if action[row] in (Action.READ, Action.WRITE)), last)
    return operators, blocks, (rows[0], following)


def _lay_out(operators: list[_Operator], plan: SwapPlan, faults: list[str]) -> int:
    """Set the operators' times with the plan's waits, the first wait beginning at 0; return the sum of waits."""
    waits = {wait.row: wait.wait_us for wait in plan.waits}
    if any(wait_us < 0 for wait_us in waits.values()) or not waits.keys() <= {operator.row for operator in operators}:
        faults.append("a wait is negative, or before no operator")
    now = 0
    for operator in operators:
        takes_us = operator.end_us - operator.begin_us
        operator.begin_us = now + waits.get(operator.row, 0)
        now = operator.end_us = operator.begin_us + takes_us
    return sum(waits.values())


def _check_move(
    move: Move, plan: SwapPlan, blocks: dict[int, _Block], rows: tuple[int, int], period_us: int, faults: list[str]
) -> None:
    name = f"block {move.block}"
    block = blocks.get(move.block)
    if block is None or not block.operators:
        faults.append(f"{name} is not touched in the step")
        return
    if block.size_bytes != move.size_bytes:
        faults.append(f"{name} has {block.size_bytes} bytes, the move has {move.size_bytes}")
    size_bytes, link = block.size_bytes, plan.link
    if move.out_end_us - move.out_start_us < link.out_latency_us + 1e6 * size_bytes / link.out_bytes_per_s:
        faults.append(f"{name} goes out faster than the link can")
    if move.in_end_us - move.in_start_us < link.in_latency_us + 1e6 * size_bytes / link.in_bytes_per_s:
        faults.append(f"{name} comes in faster than the link can")
    if move.in_start_us < move.out_end_us:
        faults.append(f"{name} comes in before it is out")
    if move.in_end_us - move.out_start_us > period_us:
        faults.append(f"{name} is out for more than a step")
    # Another step has the same block only if the block lives through all of this one.
    lasts = block.first_row < rows[0] and block.last_row > rows[1]
    rounds = (-period_us, 0, period_us) if lasts else (0,)
    for shift in rounds:
        for operator in block.operators:
            if operator.begin_us + shift < move.in_end_us and operator.end_us + shift > move.out_start_us:
                faults.append(f"{name} is absent for the operator at row {operator.row}")
    if not lasts and not block.operators[0].end_us <= move.out_start_us <= move.in_end_us <= block.operators[-1].begin_us:
        faults.append(f"{name} is moved when it does not live, or holds nothing")


def _check_stream(direction: str, copies: list[tuple[int, int]], period_us: int, faults: list[str]) -> None:
    repeated = sorted((begin + shift, end + shift) for begin, end in copies for shift in (-period_us, 0, period_us))
    for (_, end), (begin, _) in pairwise(repeated):
        if begin < end:
            faults.append(f"two copies {direction} at once, from {begin} to {end} us")


def _peak(operators: list[_Operator], plan: SwapPlan, period_us: int) -> int:
    """Return the most bytes at any instant of the middle round."""
    changes: dict[int, int] = defaultdict(int)
    for move in plan.schedule:
        for shift in (-period_us, 0, period_us):
            changes[move.out_end_us + shift] -= move.size_bytes
            changes[move.in_start_us + shift] += move.size_bytes
    spans: list[tuple[int, int, int]] = []
    before_us = 0
    for operator in operators:
        spans += [
            (before_us, operator.begin_us, operator.before_bytes),
            (operator.begin_us, operator.end_us, operator.most_bytes),
        ]
        before_us = operator.end_us
    peak_bytes = swapped_bytes = 0
    times = iter(sorted(changes))
    following = next(times, None)
    for begin_us, end_us, live_bytes in spans:
        if begin_us == end_us:
            continue
        while following is not None and following <= begin_us:
            swapped_bytes += changes[following]
            following = next(times, None)
        peak_bytes = max(peak_bytes, live_bytes + swapped_bytes)
        while following is not None and following < end_us:
            swapped_bytes += changes[following]
            following = next(times, None)
            peak_bytes = max(peak_bytes, live_bytes + swapped_bytes)
    return peak_bytes
