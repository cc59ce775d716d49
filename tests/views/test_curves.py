"""The curves of a trace against a slow count, event by event, and the rows kept by down-sampling."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.jobs.job import Job
from vramcast.simulator import curves
from vramcast.tracer.format.trace import Action, Category, Phase, Trace

MIB = 2**20
SEGMENT_ACTIONS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)


@st.composite
def traces(draw: st.DrawFn, max_size: int = 40) -> Trace:
    """Draw a job: blocks and segments come and go in any order, some older than the trace; tables have duplicate names."""
    rows: list[dict[str, int]] = []
    live: list[int] = []
    for kind in draw(
        st.lists(st.sampled_from(["alloc", "alloc", "ask", "free", "older", "segment", "context", "other"]), max_size=max_size)
    ):
        block, action = -1, Action.SNAPSHOT
        if kind == "alloc":
            action, block = Action.ALLOC, len(rows)
            live.append(block)
        elif kind == "free" and live:
            action, block = Action.FREE_COMPLETED, live.pop(draw(st.integers(0, len(live) - 1)))
        elif kind == "older":
            action = draw(st.sampled_from([Action.FREE_COMPLETED, Action.FREE_REQUESTED]))
        elif kind == "segment":
            action = draw(st.sampled_from(SEGMENT_ACTIONS))
        elif kind == "context":
            action = Action.CONTEXT
        rows.append(
            {
                "action": action,
                "block": block,
                "size_bytes": draw(st.integers(0, 2**36)),
                "category": draw(st.sampled_from(Category)),
                "step": draw(st.integers(-1, 2)),
                "phase": draw(st.sampled_from(Phase)),
                "op": draw(st.integers(-1, 2)),
                "module": draw(st.integers(-1, 3)),
            }
        )
    names = ("action", "block", "size_bytes", "category", "step", "phase", "op", "module")
    columns = {name: [row[name] for row in rows] for name in names}
    return Trace.build(columns, ops=["mm", "relu", "mm"], modules=["a", "b", "a", ""])


def estimate(trace: Trace) -> Estimate:
    card = device("a100-40gb")
    return Estimate(
        job=Job(card, target="file.py:model"), trace=trace, allocated=0, reserved=0, process=0, min_feasible=None,
        context=context_bytes(card.key, 13, ()), estimator=Estimator(), bound=PublicBound(0, frozenset()),
        tracer="nullgpu", torch="2.11.0", cuda_major=13, steps=1,
    )  # fmt: skip


def by_hand(trace: Trace) -> list[tuple[int, list[int], int, int]]:
    """Return (row, live bytes by category, reserved bytes, context) after every row with a change, by a slow loop."""
    live, reserved, context, states = [0] * len(Category), 0, 0, []
    for row in range(len(trace)):
        action, block, size_bytes = Action(trace.action[row]), int(trace.block[row]), int(trace.size_bytes[row])
        if action is Action.ALLOC:
            live[trace.category[row]] += max(-(-size_bytes // 512), 1) * 512
        elif action is Action.FREE_COMPLETED and block >= 0:
            live[trace.category[block]] -= max(-(-int(trace.size_bytes[block]) // 512), 1) * 512
        elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            reserved += size_bytes
        elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            reserved -= size_bytes
        elif action is Action.CONTEXT:
            context += size_bytes
        else:
            continue
        states.append((row, list(live), reserved, context))
    return states


# ------------------------------------------------------------------------------------------------ curves
@settings(deadline=None)
@given(trace=traces())
def test_curves_match_slow_count(trace: Trace) -> None:
    states = by_hand(trace)
    rows = curves.sampled_rows(trace, 1000)
    assert rows.tolist() == [row for row, _, _, _ in states]
    assert curves.changed_rows(trace).tolist() == [row for row in rows.tolist() if trace.action[row] != Action.CONTEXT]
    assert curves.live_by_category(trace, rows).T.tolist() == [live for _, live, _, _ in states]
    assert curves.live_bytes(trace)[rows].tolist() == [sum(live) for _, live, _, _ in states]
    assert trace.reserved_bytes()[rows].tolist() == [reserved for _, _, reserved, _ in states]
    assert curves.context_bytes(trace)[rows].tolist() == [context for _, _, _, context in states]
    assert curves.process_bytes(trace)[rows].tolist() == [reserved + context for _, _, reserved, context in states]
    assert curves.knows_segments(trace) is any(reserved > 0 for _, _, reserved, _ in states)
    heights = [context + max(sum(live), reserved) for _, live, reserved, context in states]
    assert curves.highest_bytes(trace) == max([0, *heights])


@settings(deadline=None)
@given(trace=traces())
def test_curve_is_constant_between_changes(trace: Trace) -> None:
    still = np.setdiff1d(np.arange(1, len(trace)), curves.sampled_rows(trace, 1000))
    for curve in (curves.live_bytes(trace), trace.reserved_bytes(), curves.context_bytes(trace)):
        assert curve[still].tolist() == curve[still - 1].tolist()


def test_curves_of_small_job(job_trace: Trace) -> None:
    small, ten, eleven = 4096, 10 * MIB + 4096, 11 * MIB + 4096
    assert curves.live_bytes(job_trace).tolist() == [
        0, small, small, ten, eleven, eleven, ten, ten, ten + 1024, small + 1024, small + 1024, small, small, small,
    ]  # fmt: skip
    assert curves.live_bytes(job_trace, Category.WORKSPACE).tolist() == [0] * 4 + [MIB] * 2 + [0] * 8
    assert job_trace.reserved_bytes().tolist() == [2 * MIB] * 2 + [22 * MIB] * 10 + [2 * MIB] * 2
    assert curves.context_bytes(job_trace).tolist() == [0] * 14


def test_context_adds_to_segments(process_trace: Trace) -> None:
    assert curves.context_bytes(process_trace).tolist() == [5 * MIB] * 13 + [8 * MIB] * 3
    in_mib = [5] + [7] * 2 + [27] * 10 + [30] + [10] * 2
    assert curves.process_bytes(process_trace).tolist() == [size * MIB for size in in_mib]


# ------------------------------------------------------------------------------------------------ the estimate's members
@settings(deadline=None)
@given(trace=traces())
def test_estimate_matches_slow_count(trace: Trace) -> None:
    states = by_hand(trace)
    said = estimate(trace)
    timeline = [
        (int(trace.step[row]) + 1, Phase(trace.phase[row]).name.lower(), sum(live), reserved)
        for row, live, reserved, _ in states
        if trace.action[row] != Action.CONTEXT
    ]
    assert said.timeline == timeline
    assert said.workspace_bytes == max([0, *(live[Category.WORKSPACE] for _, live, _, _ in states)])
    totals: dict[str, int] = {}
    _, peak_row = trace.peak_live()
    for block in trace.live_at(peak_row).tolist():
        index = int(trace.module[block])
        name = trace.modules[index] if index >= 0 else ""
        totals[name] = totals.get(name, 0) + int(trace.rounded_bytes()[block])
    # The order of equal sizes counts too, which a comparison of dicts ignores.
    assert list(said.by_module.items()) == sorted(totals.items(), key=lambda item: -item[1])


def test_estimate_returns_plain_values(job_trace: Trace) -> None:
    said = estimate(job_trace)
    assert {type(value) for point in said.timeline for value in point} == {int, str}
    assert {type(value) for value in [*said.by_module.values(), said.workspace_bytes]} == {int}


# ------------------------------------------------------------------------------------------------ peaks and groups
def test_peaks_may_differ_in_time(process_trace: Trace) -> None:
    live, process = curves.peak_of_live(process_trace), curves.peak_of_process(process_trace)
    assert (live.row, live.live_bytes, live.reserved_bytes) == (5, 11 * MIB + 4096, 22 * MIB)
    assert (live.context_bytes, live.process_bytes) == (5 * MIB, 27 * MIB)
    assert {category: size for category, size in live.by_category.items() if size} == {
        Category.PARAMETER: 4096, Category.ACTIVATION: 10 * MIB, Category.WORKSPACE: MIB,
    }  # fmt: skip
    assert (process.row, process.live_bytes, process.reserved_bytes) == (13, 4096, 22 * MIB)
    assert (process.context_bytes, process.process_bytes) == (8 * MIB, 30 * MIB)


def test_process_peak_without_context(job_trace: Trace) -> None:
    process = curves.peak_of_process(job_trace)
    assert (process.row, process.live_bytes, process.context_bytes, process.process_bytes) == (2, 4096, 0, 22 * MIB)


@settings(deadline=None)
@given(trace=traces())
def test_peaks_match_slow_count(trace: Trace) -> None:
    states = by_hand(trace)
    all_live = [sum(live) for _, live, _, _ in states]
    all_process = [reserved + context for _, _, reserved, context in states]
    for peak, sizes, is_known in (
        (curves.peak_of_live(trace), all_live, max(all_live, default=0) > 0),
        (curves.peak_of_process(trace), all_process, any(reserved > 0 for _, _, reserved, _ in states)),
    ):
        if not is_known:
            assert (peak.row, peak.process_bytes) == (-1, 0)
            continue
        row, live, reserved, context = states[sizes.index(max(sizes))]
        assert (peak.row, list(peak.by_category.values())) == (row, live)
        assert (peak.reserved_bytes, peak.context_bytes) == (reserved, context)


@settings(deadline=None)
@given(trace=traces())
def test_groups_cover_live_blocks_once(trace: Trace) -> None:
    for row in range(-1, len(trace)):
        expected: dict[tuple[str, str, Category], tuple[int, int]] = {}
        for block in trace.live_at(row).tolist():
            module, op = int(trace.module[block]), int(trace.op[block])
            names = (trace.modules[module] if module >= 0 else "", trace.ops[op] if op >= 0 else "")
            key = (*names, Category(trace.category[block]))
            size_bytes, count = expected.get(key, (0, 0))
            expected[key] = (size_bytes + int(trace.rounded_bytes()[block]), count + 1)
        groups = curves.groups_at(trace, row)
        assert [(g.module, g.op, g.category) for g in groups] == list(expected)
        assert [(g.size_bytes, g.n_blocks) for g in groups] == list(expected.values())
        ranked = [g.size_bytes for g in curves.top_groups(trace, row, 3)]
        assert ranked == sorted((g.size_bytes for g in groups), reverse=True)[:3]


# ------------------------------------------------------------------------------------------------ the time axis
@settings(deadline=None)
@given(trace=traces())
def test_spans_tile_the_rows(trace: Trace) -> None:
    spans = curves.spans(trace)
    assert [row for span in spans for row in range(span.first, span.end)] == list(range(len(trace)))
    for span in spans:
        assert set(trace.step[span.first : span.end].tolist()) == {span.step}
        assert set(trace.phase[span.first : span.end].tolist()) == {span.phase}
    keys = [(span.step, span.phase) for span in spans]
    assert all(left != right for left, right in pairwise(keys))


def test_step_begins_once() -> None:
    steps = [-1, 0, -1, 0, 1, 1, 3]
    trace = Trace.build({"action": [Action.SNAPSHOT] * 7, "size_bytes": [0] * 7, "block": [-1] * 7, "step": steps})
    assert curves.steps(trace) == [(1, 4, 0), (4, 6, 1), (6, 7, 3)]


# ------------------------------------------------------------------------------------------------ down-sampling
@settings(deadline=None)
@given(trace=traces(max_size=120), max_points=st.integers(4, 60))
def test_sampling_keeps_peaks_and_end(trace: Trace, max_points: int) -> None:
    rows, changed = curves.sampled_rows(trace, max_points), np.array([row for row, _, _, _ in by_hand(trace)], np.int64)
    assert len(rows) <= max_points
    assert rows.tolist() == sorted(set(rows.tolist()) & set(changed.tolist()))
    if len(changed) <= max_points:
        assert rows.tolist() == changed.tolist()
    assert rows[-1:].tolist() == changed[-1:].tolist()
    for peak in (curves.peak_of_live(trace), curves.peak_of_process(trace)):
        assert peak.row == -1 or peak.row in rows


def test_sampling_keeps_single_spike() -> None:
    n = 1_000_000
    action = np.tile([Action.ALLOC, Action.FREE_COMPLETED], n // 2)
    block = np.repeat(np.arange(0, n, 2), 2)
    size = np.full(n, 512)
    size[654_320:654_322] = 5 * MIB
    trace = Trace.build({"action": action, "size_bytes": size, "block": block})
    rows = curves.sampled_rows(trace, 100)
    assert len(rows) <= 100
    assert 654_320 in rows
    assert int(curves.live_bytes(trace)[rows].min()) == 0


@pytest.mark.parametrize("max_points", [-1, 0, 3])
def test_rejects_too_few_points(job_trace: Trace, max_points: Any) -> None:
    with pytest.raises(UsageError, match="expected 4 or more"):
        curves.sampled_rows(job_trace, max_points)
