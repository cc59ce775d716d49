"""Plans are returned only if their checkers prove them, and repeat only if the training does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.plans.access_traces import chain
from tests.plans.blocks import offset_of
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.plans import planner, pool_checker
from vramcast.plans.lifetimes import Lifetimes
from vramcast.tracer.format.trace import Action, Trace
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

MIB = 2**20


def repeating(n_iterations: int, *, before_mib: int) -> Trace:
    """Return a trace of a block of `before_mib`, then iterations of 60 blocks, alive in pairs of up to 3 MiB."""
    rows: list[tuple[int, int, int]] = [(Action.ALLOC, before_mib * MIB, 0), (Action.FREE_COMPLETED, before_mib * MIB, 0)]
    for _ in range(n_iterations):
        last = -1
        for number in range(60):
            rows.append((Action.ALLOC, MIB + 512 * number, len(rows)))
            if last >= 0:
                rows.append((Action.FREE_COMPLETED, rows[last][1], last))
            last = rows[-1][2] if rows[-1][0] == Action.ALLOC else rows[-2][2]
        rows.append((Action.FREE_COMPLETED, rows[last][1], last))
    action, size_bytes, block = zip(*rows, strict=True)
    return Trace.build({"action": action, "size_bytes": size_bytes, "block": block})


def test_repeating_plan_extends_beyond_trace() -> None:
    trace = repeating(4, before_mib=1)
    plan = planner.plan_pool(trace)
    assert pool_checker.check(Lifetimes.of(trace), plan) == []
    assert plan.period is not None
    assert offset_of(plan, 10_000) == offset_of(plan, 10_000 + plan.period.n_blocks)


def test_ignores_repetition_below_peak() -> None:
    trace = repeating(4, before_mib=100)
    assert planner.iterations(trace, Lifetimes.of(trace)) is None
    assert planner.plan_pool(trace).period is None


def test_empty_trace_has_no_iterations() -> None:
    empty = Trace.build({"action": [], "size_bytes": [], "block": []})
    assert planner.iterations(empty, Lifetimes.of(empty)) is None
    assert planner.plan_pool(empty).height_bytes == 0


def test_says_that_hooks_see_nothing_to_move() -> None:
    trace, _ = chain([8] * 8, 10_000, state_mib=8)  # as of a compiled job: no calls of hooks

    def retrace(how: RunOptions) -> Trace:
        raise AssertionError(how)

    with pytest.raises(CannotEstimate, match=r"move nothing in time, .*torch\.compile"):
        planner.hook_swaps(trace, retrace)


def test_short_search_gives_proved_plan() -> None:
    random = np.random.default_rng(3)
    n = 200
    ends = np.sort(random.permutation(2 * n)[:n])
    is_end = np.isin(np.arange(2 * n), ends)
    rows: list[tuple[int, int, int]] = []
    live: list[int] = []
    for end in is_end.tolist():
        if end and live:
            block = live.pop(int(random.integers(len(live))))
            rows.append((Action.FREE_COMPLETED, rows[block][1], block))
        else:
            live.append(len(rows))
            rows.append((Action.ALLOC, int(random.integers(1, 8 * MIB)), len(rows)))
    action, size_bytes, block = zip(*rows, strict=True)
    trace = Trace.build({"action": action, "size_bytes": size_bytes, "block": block})
    lifetimes = Lifetimes.of(trace)
    quick, slow = planner.plan_pool(trace, work=1), planner.plan_pool(trace)
    assert lifetimes.peak_live()[0] <= slow.height_bytes <= quick.height_bytes
    assert pool_checker.check(lifetimes, quick) == []


def test_swap_plan_needs_accesses() -> None:
    with pytest.raises(UsageError, match="accesses=True"):
        planner.plan_swap(repeating(2, before_mib=1))


def test_rejects_refuted_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = repeating(2, before_mib=1)
    found = planner.pool.plan(Lifetimes.of(trace))
    lower = replace(found, height_bytes=found.height_bytes - 512)
    monkeypatch.setattr(planner.pool, "plan", lambda *_, **__: lower)
    with pytest.raises(CannotEstimate, match=r"The checker rejected the pool plan: .* report the job"):
        planner.plan_pool(trace)

    class Refuted:
        faults = ("block 3 is read while it is out",)

    def plan(*_: Any, **__: Any) -> Any:
        return type("Plan", (), {"feasible": True})()

    monkeypatch.setattr(planner.swap, "plan", plan)
    monkeypatch.setattr(planner.swap_checker, "check", lambda *_: Refuted)
    with pytest.raises(CannotEstimate, match="The checker rejected the swap plan: block 3 is read while it is out"):
        planner.plan_swap(trace)


# ------------------------------------------------------------------------------------------------ hooks on saved tensors
# Layers that save 32 MiB each.
DEEP = """
import torch
def deep():
    return torch.nn.Sequential(*(layer for _ in range(8) for layer in (torch.nn.Linear(1024, 1024), torch.nn.Tanh())))
"""


@pytest.mark.parametrize("share", [None, 0.8])
def test_hooks_take_the_planned_peak_however_late_copies_are(
    trace: Callable[..., Result], tmp_path: Path, share: float | None, needs_null_gpu: None
) -> None:
    pytest.importorskip("optuna")
    path = tmp_path / "deep.py"
    path.write_text(DEEP)

    def traced(**how: Any) -> Trace:
        found = trace(target=f"{path}:deep", batch="8192x1024", labels="8192x1024", device="t4", limited=False, **how).trace
        assert found is not None
        return found

    watched = traced(accesses=True, swaps=())
    peak_bytes, _ = watched.peak_live()
    limit_bytes = None if share is None else int(share * peak_bytes)
    found = planner.hook_swaps(watched, lambda how: traced(swaps=how.swaps), limit_bytes=limit_bytes, link="pcie3")
    assert found.peak_bytes <= (limit_bytes or peak_bytes - 1)
    assert found.moved_bytes > 0
    assert found.overhead_ms == 0 or share is not None
    late = traced(swaps=found.rounds, slow=True)
    assert late.peak_live()[0] == found.peak_bytes
    assert traced().peak_live()[0] == peak_bytes
