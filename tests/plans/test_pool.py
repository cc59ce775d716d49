"""Planned pools: they are valid and low, and the checker finds planted faults."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from benchmarks.simulator.pool import simple
from vramcast.core.compiler import FLAGS, SANITIZERS, find_compiler
from vramcast.core.errors import CompilerError, TraceFileError
from vramcast.plans import packing, pool_checker, repetition
from vramcast.plans.lifetimes import Lifetimes
from vramcast.plans.packing import Fit, Items, place
from vramcast.plans.pool import PoolPlan, plan
from vramcast.tracer.format.trace import Trace

from .blocks import lifetimes, offset_of, training

WORK = 300_000  # arbitrary: a few milliseconds of search


@hypothesis_settings(deadline=None)
@given(blocks=lifetimes())
def test_every_plan_passes_checker(blocks: Lifetimes) -> None:
    live = blocks.peak_live()[0]
    for made in (plan(blocks, work=WORK), simple(blocks, Fit.LOWEST), simple(blocks, Fit.SMALLEST)):
        assert pool_checker.check(blocks, made) == []
        assert made.height_bytes >= live
        assert made.height_bytes == max((made.offset_bytes + made.size_bytes).tolist(), default=0)
        assert (made.offset_bytes.dtype, made.size_bytes.tolist()) == (np.int64, blocks.size_bytes.tolist())


@hypothesis_settings(deadline=None)
@given(blocks=lifetimes())
def test_plan_beats_paper_and_is_deterministic(blocks: Lifetimes) -> None:
    found = plan(blocks, work=WORK)
    assert found.height_bytes <= min(simple(blocks, fit).height_bytes for fit in (Fit.LOWEST, Fit.SMALLEST))
    again = plan(blocks, work=WORK)
    assert (again.offset_bytes.tolist(), again.algorithm) == (found.offset_bytes.tolist(), found.algorithm)


@hypothesis_settings(deadline=None, max_examples=50)
@given(
    n_steps=st.integers(2, 10),
    n_layers=st.integers(15, 25),
    kept=st.integers(0, 3),
    leak=st.booleans(),
)
def test_plans_of_iterations_pass_checker(n_steps: int, n_layers: int, kept: int, leak: bool) -> None:
    trace = training(n_steps, n_layers=n_layers, kept=kept, leak=leak)
    blocks = Lifetimes.of(trace)
    assert pool_checker.check(blocks, plan(blocks, repetition.find(trace), work=WORK)) == []


@pytest.mark.parametrize("leak", [False, True])
def test_plan_of_few_iterations_holds_for_many(leak: bool) -> None:
    few = training(6, leak=leak)
    iterations = repetition.find(few)
    made = plan(Lifetimes.of(few), iterations, work=WORK)
    assert made.period is not None
    assert bool(made.period.unplanned) == leak
    # The trace of six steps ends where the seventh would begin, so the long one is the same up to there.
    many = Lifetimes.of(training(20, leak=leak))
    offsets = [offset_of(made, number) for number in range(len(many))]
    planned = np.array([offset is not None for offset in offsets])
    assert (~planned).sum() == (0 if not leak else pytest.approx(14, abs=2))
    followed = PoolPlan(
        np.array([offset for offset in offsets if offset is not None], np.int64),
        many.size_bytes[planned],
        made.height_bytes,
        made.algorithm,
        0.0,
    )
    assert pool_checker.check(many.only(planned), followed) == []


def test_blocks_outliving_iteration_take_turns() -> None:
    trace = training(8, kept=1)
    blocks = Lifetimes.of(trace)
    iterations = repetition.find(trace)
    assert iterations is not None
    made = plan(blocks, iterations, work=WORK)
    assert made.period is not None
    per_iteration = np.diff(np.searchsorted(blocks.birth, iterations.borders))[0]
    # An output is still live when the next one is created; gradients are not.
    assert made.period == replace(made.period, n_blocks=2 * per_iteration, unplanned=())


def test_first_block_after_iterations_starts_period() -> None:
    trace = training(6)
    blocks, iterations = Lifetimes.of(trace), repetition.find(trace)
    assert iterations is not None
    made = plan(blocks, iterations, work=WORK)
    assert made.period is not None
    assert made.period.end_block == np.searchsorted(blocks.birth, iterations.borders[-1])


def test_long_lived_blocks_unplanned_after_two_iterations() -> None:
    trace = training(4, kept=1)
    iterations = repetition.find(trace)
    assert iterations is not None
    assert iterations.count == 2
    made = plan(Lifetimes.of(trace), iterations, work=WORK)
    assert made.period is not None
    assert len(made.period.unplanned) == 1
    assert offset_of(made, made.period.end_block + made.period.unplanned[0]) is None


def test_outputs_freed_by_next_step_cost_nothing() -> None:
    # Ordered by size alone, each step's large blocks have the same places, and the outputs of the step before do not fit
    # between them.
    sizes, birth, death = [], [], []
    for step in range(6):
        for start, end, size in ((0, 112, 6), (10, 30, 4), (20, 32, 4), (25, 35, 4)):
            sizes.append(size * 512)
            birth.append(100 * step + start)
            death.append(100 * step + end)
    order = np.argsort(birth, kind="stable")
    columns = [np.array(column, np.int64)[order] for column in (birth, sizes, birth, death)]
    blocks = Lifetimes(columns[0], columns[1], columns[2], columns[3], 700)
    assert plan(blocks).height_bytes == blocks.peak_live()[0] < simple(blocks, Fit.SMALLEST).height_bytes


def test_empty_plan() -> None:
    nothing = Lifetimes.of(Trace.build({"action": [], "size_bytes": [], "block": []}))
    assert plan(nothing).to_dict()["height_bytes"] == 0


# ------------------------------------------------------------------------------------------------ placing items
def items(*blocks: tuple[int, int, int]) -> Items:
    """Return items of (units of 512 B, birth, death)."""
    sizes, birth, death = (np.array(column, np.int64) for column in zip(*blocks, strict=True))
    return Items(sizes * 512, np.arange(len(blocks) + 1), birth, death)


@pytest.mark.parametrize(("fit", "offset"), [(Fit.LOWEST, 1), (Fit.SMALLEST, 6), (Fit.HIGHEST, 17)])
def test_fit_selects_hole(fit: Fit, offset: int) -> None:
    # Below the item's neighbors are holes from 1 to 4 and from 6 to 8; from 10 to 18 there is room up to the target.
    scene = items((1, 0, 9), (3, 0, 1), (2, 0, 9), (2, 0, 1), (2, 0, 9), (1, 5, 6))
    fits = np.array([Fit.LOWEST] * 5 + [fit], np.uint8)
    done = place(scene, np.arange(6), fits, 18 * 512)
    assert (done.placed, (done.offset_bytes // 512).tolist()) == (6, [0, 1, 4, 6, 8, offset])


def test_item_of_several_spans_avoids_all() -> None:
    scene = Items(
        np.array([512, 512, 512]), np.array([0, 2, 3, 4]), np.array([0, 10, 4, 11]), np.array([3, 13, 8, 12])
    )  # the first item lives from 0 to 3 and from 10 to 13
    done = place(scene, np.arange(3), np.zeros(3, np.uint8))
    assert done.offset_bytes.tolist() == [0, 0, 512]


def test_unfitting_item_moves_ahead() -> None:
    scene = items((1, 0, 4), (1, 3, 7), (2, 5, 9), (1, 0, 2))
    order, fits = np.array([3, 0, 1, 2]), np.zeros(4, np.uint8)
    assert place(scene, order, fits, 3 * 512).placed == 4
    tight = items((1, 0, 4), (1, 0, 2), (2, 3, 9))  # the last item must precede the second, or the first must lie above it
    assert place(tight, np.array([1, 0, 2]), fits[:3], 3 * 512).placed == 2
    done = place(tight, np.array([1, 0, 2]), fits[:3], 3 * 512, moves=20)
    assert done.placed == 3
    assert sorted(done.order.tolist()) == [0, 1, 2]
    assert place(tight, np.array([1, 0, 2]), fits[:3], 2 * 512, moves=20).placed < 3  # three units live at once


PROGRAM = """
#include "SOURCE"
enum { N = 400 };
int main(void) {
    int64_t size[N], first[N + 1], birth[2 * N], death[2 * N], order[N], offset[N], work = 1 << 30;
    uint8_t fit[N];
    uint64_t state = 88172645463325252ull;
    for (int64_t i = 0, spans = 0; i <= N; i++) {
        first[i] = spans;
        for (int64_t at = drawn(&state, 300), k = 0; i < N && k <= i % 2; k++, spans++) {
            birth[spans] = at;
            at = death[spans] = at + 1 + drawn(&state, 60);
        }
        if (i < N) {
            size[i] = 512 * (1 + drawn(&state, 40));
            fit[i] = (uint8_t)drawn(&state, 3);
            order[i] = i;
        }
    }
    const struct items items = {N, size, first, birth, death};
    for (int64_t target = 512 * 1024; target < 512 * 16384; target *= 2)
        if (packing_place(&items, order, fit, target, 300, 1, &work, offset) == N) return 0;
    return 1;
}
"""


@pytest.mark.integration
def test_c_code_passes_sanitizers(tmp_path: Path) -> None:
    try:
        command = [*find_compiler(), *FLAGS, *SANITIZERS, "-o", str(tmp_path / "program"), "-x", "c", "-"]
        probe = subprocess.run(command, input="int main(void) { return 0; }", text=True, capture_output=True)
    except CompilerError as error:
        pytest.skip(str(error))
    if probe.returncode:
        pytest.skip("this compiler has no address sanitizer")
    subprocess.run(command, input=PROGRAM.replace("SOURCE", str(packing.SOURCE)), text=True, check=True)
    ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


# ------------------------------------------------------------------------------------------------ planted faults
def broken(what: str, made: PoolPlan) -> PoolPlan:
    """Return a plan with one fault."""
    offset = made.offset_bytes.copy()
    if what == "overlap":
        offset[1] = offset[0]
    elif what == "touch":
        offset[1] = offset[0] + 512
    elif what == "below":
        offset[0] = -512
    elif what == "align":
        offset[2] += 256
    elif what == "height":
        return replace(made, height_bytes=made.height_bytes - 1)
    elif what == "size":
        return replace(made, size_bytes=made.size_bytes - 512)
    elif what == "short":
        return replace(made, offset_bytes=offset[:-1])
    return replace(made, offset_bytes=offset)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("overlap", "overlaps"),
        ("touch", "overlaps"),
        ("below", "outside"),
        ("align", "not a multiple"),
        ("height", "outside"),
        ("size", " B of "),
        ("short", "offsets and"),
    ],
)
def test_checker_finds_planted_fault(what: str, words: str) -> None:
    times = np.array([0, 1, 2]), np.array([5, 6, 7])
    blocks = Lifetimes(times[0], np.array([2048, 2048, 1024]), *times, 8)
    made = plan(blocks)
    assert pool_checker.check(blocks, made) == []
    assert any(words in problem for problem in pool_checker.check(blocks, broken(what, made)))


def test_checker_accepts_reused_place() -> None:
    blocks = Lifetimes(np.array([0, 3]), np.array([512, 512]), np.array([0, 3]), np.array([3, 5]), 6)
    made = PoolPlan(np.array([0, 0]), np.array([512, 512]), 512, "by hand", 0.0)
    assert pool_checker.check(blocks, made) == []


def test_checker_finds_blocks_out_of_turn() -> None:
    trace = training(8)
    blocks = Lifetimes.of(trace)
    made = plan(blocks, repetition.find(trace), work=WORK)
    assert made.period is not None
    period = made.period
    offset = made.offset_bytes.copy()
    offset[period.end_block - 1] = made.height_bytes
    higher = replace(made, offset_bytes=offset, height_bytes=made.height_bytes + int(made.size_bytes[period.end_block - 1]))
    assert any("a period before" in problem for problem in pool_checker.check(blocks, higher))
    for wrong in (replace(period, n_blocks=0), replace(period, end_block=len(blocks) + 1), replace(period, first_block=-1)):
        assert any("is not one of" in problem for problem in pool_checker.check(blocks, replace(made, period=wrong)))


# ------------------------------------------------------------------------------------------------ JSON
@given(n_steps=st.integers(1, 8))
@hypothesis_settings(deadline=None, max_examples=8)
def test_plan_round_trips_through_json(n_steps: int) -> None:
    trace = training(n_steps, leak=True)
    made = plan(Lifetimes.of(trace), repetition.find(trace), work=WORK)
    again = PoolPlan.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.to_dict() == made.to_dict()
    assert again.period == made.period


def test_saves_plan_as_json(tmp_path: Path) -> None:
    made = plan(Lifetimes.of(training(2)), work=WORK)
    made.save(tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["offset_bytes"][:3] == made.offset_bytes[:3].tolist()
    assert written["alignment_bytes"] == 512


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "pool"}, "not a 'vramcast-pool-plan'"),
        ({"version": 2}, "version 1"),
        ({"offset_bytes": ["a"]}, "damaged"),
        ({"offset_bytes": [[0]]}, "one offset"),
        ({"size_bytes": []}, "one offset"),
        ({"height_bytes": None}, "damaged"),
        ({"period": {"first_block": 0}}, "damaged"),
    ],
)
def test_rejects_damaged_plan(change: dict[str, Any], words: str) -> None:
    data = plan(Lifetimes.of(training(2)), work=WORK).to_dict()
    with pytest.raises(TraceFileError, match=words):
        PoolPlan.from_dict(data | change)
    with pytest.raises(TraceFileError, match="version 1"):
        PoolPlan.from_dict([])


def test_search_stops_at_work_limit() -> None:
    blocks = Lifetimes.of(training(3))
    orders_only, searched = plan(blocks, work=1), plan(blocks, work=WORK)
    assert orders_only.algorithm == "size descending, first fit"
    assert searched.height_bytes <= orders_only.height_bytes
