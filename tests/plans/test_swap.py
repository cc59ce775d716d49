"""Swap plans: handmade scores and schedules, random traces against the independent checker, and planted faults."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.plans import swap, swap_checker
from vramcast.plans.swap import Move, SwapPlan, Wait, raw_scores, scores
from vramcast.plans.swap_schedule import LINKS, Link, Scheduler, find_link
from vramcast.plans.swap_timeline import Candidates, SwapTimeline
from vramcast.tracer.format.trace import Action, Trace

from .access_traces import MIB, access_traces, chain

# A MiB takes 100 us in each direction; there is no latency.
EVEN = Link("even", MIB * 1e4, MIB * 1e4, 0, 0)
links = st.sampled_from([*LINKS.values(), EVEN])


# ------------------------------------------------------------------------------------------------ links
def test_copy_takes_latency_plus_bytes() -> None:
    link = Link("x", 1e9, 2e9, 5, 7)
    assert (link.out_us(10**6), link.in_us(10**6), link.out_us(1)) == (1005, 507, 6)


def test_each_pcie_generation_doubles_speed() -> None:
    rates = [LINKS[name].out_bytes_per_s for name in ("pcie3", "pcie4", "pcie5")]
    assert rates[1] / rates[0] == pytest.approx(2)
    assert rates[2] / rates[1] == pytest.approx(2)
    assert rates[0] == pytest.approx(0.8 * 15.754e9, rel=1e-3)


def test_paper_link_matches_its_fit() -> None:
    assert LINKS["paper"].out_us(10**9) == 75_648  # 47.2 us + 0.0756 ns per byte
    assert LINKS["paper"].in_us(10**9) == 82_310


def test_unknown_link_lists_known_ones() -> None:
    with pytest.raises(UsageError, match="pcie3, pcie4"):
        find_link("pcie9")


# ------------------------------------------------------------------------------------------------ the step
def test_timeline_has_all_operators_of_last_step() -> None:
    trace, script = chain([4, 2, 8], 1000, state_mib=16)
    line = SwapTimeline.of(trace)
    assert line.step == 1
    assert line.duration_us.tolist() == [1000] * 7
    held = 3 + 16
    assert [n // MIB for n in line.load_bytes.tolist()] == [held + n for n in (4, 6, 14, 14, 6, 4, 0)]
    assert [n // MIB for n in line.rest_bytes.tolist()] == [held + n for n in (0, 4, 6, 14, 6, 4, 0)]
    assert line.peak == 2
    assert line.accesses[script.row("a0")] == [0, 1, 5]
    assert line.accesses[script.row("state")] == [6]
    assert line.source == "by hand"


def test_candidates_idle_across_peak() -> None:
    trace, script = chain([4, 2, 8, 0], 1000, state_mib=16)
    found = Candidates.of(SwapTimeline.of(trace))
    at = {int(block): i for i, block in enumerate(found.block)}
    # The peak is operator 3 of 9. a0: 0, 1 and 7; a2 is touched by 2, 3 and 5; the state by 8 of every step.
    assert set(at) == {script.row(name) for name in ("a0", "a1", "w0", "w1", "w2", "state")}
    a0, state = at[script.row("a0")], at[script.row("state")]
    assert (found.needed[a0], found.ready[a0]) == (4, 7)
    assert (found.needed[state], found.ready[state]) == (5, 5)


def test_blocks_below_one_mib_are_no_candidates() -> None:
    trace, _ = chain([4, 2, 8], 1000)
    assert len(Candidates.of(SwapTimeline.of(trace), min_bytes=MIB)) > len(
        Candidates.of(SwapTimeline.of(trace), min_bytes=MIB + 1)
    )


def test_plans_last_step_before_oom() -> None:
    trace, _ = chain([4, 2, 8], 1000, n_steps=3)
    rows = np.flatnonzero(trace.step == 2)
    oom = {"action": [Action.OOM], "size_bytes": [1], "block": [-1], "step": [2]}
    assert SwapTimeline.of(trace.insert([len(trace)], oom)).step == 1
    assert SwapTimeline.of(trace.insert([rows[3]], oom)).step == 2  # the job continued without it


def test_rejects_trace_ending_in_first_step() -> None:
    trace, _ = chain([4, 2, 8], 1000, n_steps=1)
    trace = trace.insert([len(trace)], {"action": [Action.OOM], "size_bytes": [1], "block": [-1], "step": [0]})
    with pytest.raises(UsageError, match="no full step"):
        swap.plan(trace)


def test_rejects_clock_running_backwards() -> None:
    trace, _ = chain([4, 2, 8], 1000)
    with pytest.raises(UsageError, match="clock"):
        swap.plan(dataclasses.replace(trace, time_us=trace.time_us[::-1].copy()))


def test_missing_optuna_names_package(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, _ = chain([4, 2, 8], 1000)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="plan"):
        swap.plan(trace)


# ------------------------------------------------------------------------------------------------ scores
def test_scores_match_definitions() -> None:
    trace, script = chain([4, 2, 8, 0], 1000, state_mib=16)
    line = SwapTimeline.of(trace)
    found = Candidates.of(line)
    a0 = found.block.tolist().index(script.row("a0"))
    doa, aoa, wdoa, _ = raw_scores(line, found, EVEN)[a0]
    # a0 is idle from the end of operator 1 to the begin of 7, and each copy takes 400 us.
    assert doa == 5000 - 800
    assert aoa == doa * 4 * MIB
    assert wdoa == line.load_bytes[2:7].sum()


def test_area_of_too_short_idle_time() -> None:
    trace, script = chain([40, 2, 8, 0], 100)
    line = SwapTimeline.of(trace)
    found = Candidates.of(line)
    a0 = found.block.tolist().index(script.row("a0"))
    doa, aoa, _, _ = raw_scores(line, found, EVEN)[a0]
    assert doa == 500 - 8000
    assert aoa == doa / (40 * MIB)


@settings(max_examples=40)
@given(access_traces())
def test_submodular_score_uses_remaining_load(trace: Trace) -> None:
    line = SwapTimeline.of(trace)
    found = Candidates.of(line)
    given_scores = raw_scores(line, found, EVEN)[:, 3].tolist()
    load = {(k - line.peak) % len(line): int(n) for k, n in enumerate(line.load_bytes)}
    idle = [{q for q in load if q < n or q > r} for n, r in zip(found.needed.tolist(), found.ready.tolist(), strict=True)]
    left = set(range(len(found)))
    while left:
        best = max(left, key=lambda i: (sum(load[q] for q in idle[i]), -i))
        assert given_scores[best] == sum(load[q] for q in idle[best])
        for q in idle[best]:
            load[q] -= int(found.size_bytes[best])
        left.remove(best)


@settings(max_examples=40)
@given(access_traces())
def test_scores_are_standardized(trace: Trace) -> None:
    line = SwapTimeline.of(trace)
    found = scores(line, Candidates.of(line), EVEN)
    for column in found.T if len(found) else ():
        assert column.mean() == pytest.approx(0, abs=1e-9)
        assert column.std() == pytest.approx(1) or not column.any()


# ------------------------------------------------------------------------------------------------ plans
def test_activation_goes_out_and_returns_in_time() -> None:
    trace, script = chain([10, 1, 1, 30], 1000)
    plan = swap.plan(trace, link=EVEN)
    moves = {move.block: move for move in plan.schedule}
    # a0 is last touched by operator 1, and needed by 7; operator 3 is the peak.
    assert moves[script.row("a0")] == Move(script.row("a0"), 10 * MIB, 2000, 3000, 6000, 7000)
    assert plan.peak_live_bytes == 46 * MIB
    assert plan.peak_bytes <= 36 * MIB
    assert plan.overhead_ms == 0
    assert plan.time_source == "by hand"
    assert swap_checker.check(trace, plan).faults == ()


def test_lasting_block_is_out_while_unused() -> None:
    trace, script = chain([1, 1, 1, 30], 1000, state_mib=20)
    plan = swap.plan(trace, link=EVEN)
    move = next(move for move in plan.schedule if move.block == script.row("state"))
    # Its only operator is the last of 9: it goes out in the previous step, and comes in for this one.
    assert (move.out_start_us, move.out_end_us) == (0, 2000)
    assert (move.in_start_us, move.in_end_us) == (6000, 8000)
    assert swap_checker.check(trace, plan).faults == ()


def test_sufficient_limit_moves_nothing() -> None:
    trace, _ = chain([10, 1, 1, 30], 1000)
    plan = swap.plan(trace, limit_bytes=46 * MIB)
    assert (plan.feasible, plan.schedule, plan.overhead_ms) == (True, (), 0.0)
    assert swap.plan(trace, limit_bytes=46 * MIB - 1).schedule != ()


def test_limit_costs_unhidden_copy_time() -> None:
    trace, script = chain([20, 1, 1, 30], 1000)
    plan = swap.plan(trace, limit_bytes=37 * MIB, link=EVEN)
    # a0 has to be out when operator 3 begins, at 3000, but is touched until 2000 and takes 2000 us; it returns in time.
    assert plan.feasible
    assert plan.overhead_ms == 1.0
    assert plan.waits == (Wait(int(SwapTimeline.of(trace).row[3]), 1000),)
    assert [move.block for move in plan.schedule] == [script.row("a0")]
    assert swap_checker.check(trace, plan).faults == ()


def test_limit_below_minimum_is_infeasible() -> None:
    trace, _ = chain([20, 1, 1, 30], 1000)
    plan = swap.plan(trace, limit_bytes=30 * MIB)
    assert not plan.feasible
    assert (plan.overhead_ms, plan.schedule) == (None, ())
    assert plan.peak_bytes > 30 * MIB
    assert swap_checker.check(trace, plan).faults == ()
    assert swap.plan(trace, limit_bytes=plan.peak_bytes).feasible


def test_faster_link_never_costs_more() -> None:
    trace, _ = chain([20, 10, 10, 30, 5, 5], 1000, state_mib=10)
    found = [swap.plan(trace, limit_bytes=60 * MIB, link=link) for link in ("pcie3", "pcie4", "pcie5", "nvlink-c2c")]
    overheads = [plan.overhead_ms or 0.0 for plan in found]
    assert overheads == sorted(overheads, reverse=True)
    assert overheads[0] > overheads[-1] == 0


def test_no_limit_means_least_peak() -> None:
    trace, _ = chain([10, 1, 1, 30], 1000)
    assert swap.plan(trace) == swap.plan(trace)


@pytest.mark.parametrize("limit_bytes", [0, -1])
def test_rejects_nonpositive_limit(limit_bytes: int) -> None:
    trace, _ = chain([10, 1], 1000)
    with pytest.raises(UsageError, match="bytes"):
        swap.plan(trace, limit_bytes=limit_bytes)


def test_plan_is_plain_json() -> None:
    trace, _ = chain([10, 1, 1, 30], 1000)
    said = json.loads(json.dumps(swap.plan(trace, limit_bytes=40 * MIB).to_dict()))
    assert said["limit"] == 40 * MIB
    assert said["feasible"] is True
    assert said["moved_bytes"] == sum(move["size_bytes"] for move in said["schedule"])
    assert said["link"] == "pcie4"
    assert {"overhead_ms", "peak", "peak_live", "waits", "time_source"} <= said.keys()


# ------------------------------------------------------------------------------------------------ random traces
@settings(deadline=None, max_examples=25)
@given(access_traces(), links)
def test_unlimited_plan_never_waits(trace: Trace, link: Link) -> None:
    plan = swap.plan(trace, link=link)
    checked = swap_checker.check(trace, plan)
    assert checked.faults == ()
    assert (checked.overhead_us, plan.waits) == (0, ())
    assert plan.peak_bytes <= plan.peak_live_bytes


@settings(deadline=None, max_examples=25)
@given(access_traces(), links, st.floats(0.05, 1.0))
def test_limited_plans_pass_checker(trace: Trace, link: Link, share: float) -> None:
    limit_bytes = max(1, int(share * SwapTimeline.of(trace).load_bytes.max()))
    plan = swap.plan(trace, limit_bytes=limit_bytes, link=link)
    assert swap_checker.check(trace, plan).faults == ()
    assert plan.feasible == (plan.peak_bytes <= limit_bytes)


@settings(deadline=None, max_examples=50)
@given(access_traces(), links, st.data())
def test_any_choice_of_blocks_can_be_scheduled(trace: Trace, link: Link, data: st.DataObject) -> None:
    line = SwapTimeline.of(trace)
    found = Candidates.of(line, min_bytes=1)
    chosen = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found))))
    scheduler = Scheduler(line, found, link)
    limit_bytes = int(scheduler.least_load(chosen).max())
    schedule = scheduler.within(chosen, limit_bytes)
    assert schedule.peak_bytes <= limit_bytes
    assert (schedule.wait_us >= 0).all()


# ------------------------------------------------------------------------------------------------ planted faults
def _faulty(change: Callable[[SwapPlan], SwapPlan]) -> tuple[str, ...]:
    trace, _ = chain([20, 8, 1, 30], 1000, state_mib=4)
    plan = swap.plan(trace, limit_bytes=42 * MIB, link=EVEN)
    assert swap_checker.check(trace, plan).faults == ()
    assert len(plan.schedule) > 1
    assert plan.waits
    return swap_checker.check(trace, change(plan)).faults


def _moved(plan: SwapPlan, **changes: int) -> SwapPlan:
    """Return `plan` with the times of its largest move shifted, or its fields replaced."""
    largest = max(plan.schedule, key=lambda move: move.size_bytes)
    fields = {
        name: value if name in ("block", "size_bytes") else getattr(largest, name) + value for name, value in changes.items()
    }
    moves = tuple(dataclasses.replace(m, **fields) if m is largest else m for m in plan.schedule)
    return dataclasses.replace(plan, schedule=moves)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda p: _moved(p, in_start_us=2000, in_end_us=2000), "is absent"),
        (lambda p: _moved(p, out_start_us=-2000, out_end_us=-2000), "is absent"),
        (lambda p: _moved(p, in_start_us=-10**6, in_end_us=-10**6), "before it is out"),
        (lambda p: _moved(p, out_end_us=-100), "faster than the link"),
        (lambda p: _moved(p, in_start_us=100), "faster than the link"),
        (lambda p: _moved(p, size_bytes=5 * MIB), "the move has"),
        (lambda p: _moved(p, block=10**6), "not touched"),
        (lambda p: _moved(p, in_end_us=10**6), "more than a step"),
        (lambda p: dataclasses.replace(p, waits=()), "is absent"),
        (lambda p: dataclasses.replace(p, waits=(Wait(0, 5),)), "before no operator"),
        (lambda p: dataclasses.replace(p, limit_bytes=p.peak_bytes - 1), "live at once"),
        (lambda p: dataclasses.replace(p, peak_bytes=p.peak_bytes - 1), "the plan claims"),
        (lambda p: dataclasses.replace(p, overhead_ms=0.0), "the plan claims"),
        (lambda p: dataclasses.replace(p, moved_bytes=0), "the plan claims"),
        (lambda p: dataclasses.replace(p, feasible=False), "infeasible"),
        (lambda p: dataclasses.replace(p, schedule=p.schedule[1:]), "live at once"),
        (lambda p: dataclasses.replace(p, schedule=(*p.schedule, p.schedule[0])), "twice"),
        (lambda p: dataclasses.replace(p, schedule=(*p.schedule, p.schedule[0])), "two copies out at once"),
        (lambda p: dataclasses.replace(p, schedule=(*p.schedule, p.schedule[0])), "two copies in at once"),
    ],
)  # fmt: skip
def test_checker_finds_planted_fault(change: Callable[[SwapPlan], SwapPlan], fault: str) -> None:
    assert any(fault in text for text in _faulty(change)), _faulty(change)


@settings(deadline=None, max_examples=25)
@given(access_traces(), st.data())
def test_checker_finds_copy_overlapping_access(trace: Trace, data: st.DataObject) -> None:
    """Any chosen block: a copy in that ends after the operator needing it begins is a fault."""
    plan = swap.plan(trace, link=EVEN)
    if not plan.schedule:
        return
    move = data.draw(st.sampled_from(plan.schedule))
    line = SwapTimeline.of(trace)
    period_us = line.period_us
    begins = [int(line.start_us[k]) + n * period_us for k in line.accesses[move.block] for n in (0, 1)]
    need_us = min(begin for begin in begins if begin >= move.in_end_us)
    late_us = need_us - move.in_end_us + data.draw(st.integers(1, 5))
    late = dataclasses.replace(move, in_start_us=move.in_start_us + late_us, in_end_us=move.in_end_us + late_us)
    moves = tuple(late if m is move else m for m in plan.schedule)
    assert any("is absent" in text for text in swap_checker.check(trace, dataclasses.replace(plan, schedule=moves)).faults)
