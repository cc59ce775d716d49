"""Memory that a loop keeps from step to step: the rule, on artificial histories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import TraceFileError
from vramcast.estimates.growth import Growth, grows, kept_by, kept_so_far, place_of, to_watch
from vramcast.simulator.repeated_steps import RepeatedSteps
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.loops import loops_of
from vramcast.tracer.format.trace import LOOPS, Action, Trace

KIB, MIB = 2**10, 2**20
N_STEPS = 64


class History:
    """A history of blocks, each with the name of the requesting operator."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.ends: list[int] = []
        self.ops: list[str] = []

    def ask(self, size_bytes: int, op: str = "aten::mm") -> int:
        if op not in self.ops:
            self.ops.append(op)
        self.rows.append((Action.ALLOC, size_bytes, len(self.rows), self.ops.index(op)))
        return len(self.rows) - 1

    def free(self, block: int) -> None:
        for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            self.rows.append((action, self.rows[block][1], block, -1))

    def step(self) -> None:
        self.ends.append(len(self.rows))

    def trace(self, **loop: Any) -> Trace:
        action, size, block, op = np.array(self.rows).T
        said = {"number": 0, "phase": "training", "ends": self.ends, "length": None, "is_open": True, **loop}
        columns = {"action": action, "size_bytes": size, "block": block, "op": op, "address": np.arange(1, len(action) + 1)}
        return Trace.build(columns, ops=self.ops, header={LOOPS: {"all": [said], "kept": []}})


def of_steps(body: Callable[[History, int], None], n: int = N_STEPS) -> History:
    """Return the history of a training: weights, an optimizer's state in the first step, activations in each, and `body`."""
    history = History()
    history.ask(5 * MIB, "weights")
    for step in range(n):
        activation = history.ask(3 * MIB)
        if step == 0:
            history.ask(10 * MIB, "adam")
        body(history, step)
        history.free(activation)
        history.step()
    return history


def kept_of(history: History) -> Any:
    return kept_by(history.trace(), tuple(history.ends))


# ------------------------------------------------------------------------------------------------ the rule
@given(st.lists(st.integers(0, 10**9), min_size=20, max_size=130), st.integers(0, 2**40))
def test_constant_tail_settles(before: list[int], last: int) -> None:
    assert grows([*before, *[last] * (len(before) // 2)]) == 0


@given(st.integers(1, 10**9), st.integers(0, 2**40), st.integers(20, 128), st.data())
def test_linear_series_grows(by: int, base: int, n: int, data: st.DataObject) -> None:
    first = data.draw(st.lists(st.integers(0, base), min_size=n // 4, max_size=n // 4))
    assert grows([*first, *(base + by * step for step in range(n - n // 4))]) == by


@given(st.integers(1, 10**6), st.integers(1, 6), st.integers(0, 5), st.integers(64, 128))
def test_counts_whole_periods(by: int, period: int, phase: int, n: int) -> None:
    assert grows([by * ((step + phase) // period) for step in range(n)]) == pytest.approx(by / period)


@given(st.lists(st.integers(0, 10**9), min_size=32, max_size=128))
def test_shrinking_series_settles(live: list[int]) -> None:
    assert grows([*live, live[-1] + 1, live[-1]]) == 0


@given(st.lists(st.integers(1, 1000), min_size=64, max_size=128))
def test_running_maximum_settles(batches: list[int]) -> None:
    assert grows(np.maximum.accumulate([1000, *batches])) == 0


# ------------------------------------------------------------------------------------------------ traces
@given(st.integers(1, 5 * MIB), st.lists(st.integers(1, 4 * MIB), min_size=N_STEPS, max_size=N_STEPS))
def test_finds_leak_among_varying_batches(size: int, batches: list[int]) -> None:
    def body(history: History, step: int) -> None:
        batch = history.ask(batches[step], "aten::to")
        history.ask(size, "aten::mean")
        history.free(batch)

    kept = kept_of(of_steps(body))
    assert kept is not None
    assert kept.bytes_per_step == -(-size // 512) * 512


@given(
    st.integers(1, N_STEPS // 2),
    st.lists(st.integers(1, 4 * MIB), min_size=N_STEPS, max_size=N_STEPS),
    st.sampled_from(["fifo", "ring", "first", "clear"]),
)
def test_bounded_cache_settles(capacity: int, sizes: list[int], kind: str) -> None:
    kept: list[int] = []

    def body(history: History, step: int) -> None:
        if kind == "first" and step >= capacity // 2:
            return
        kept.append(history.ask(sizes[step if kind != "fifo" else 0], "aten::mean"))
        if kind == "fifo" and len(kept) > capacity // 2:
            history.free(kept.pop(0))
        elif kind == "ring" and len(kept) > capacity // 2:
            history.free(kept.pop(step % len(kept)))
        elif kind == "clear" and len(kept) == capacity:
            while kept:
                history.free(kept.pop())

    assert kept_of(of_steps(body)) is None


def test_finds_growing_tensor() -> None:
    live: list[int] = []

    def body(history: History, step: int) -> None:
        live.append(history.ask((step + 1) * 2 * MIB, "aten::cat"))
        if len(live) > 1:
            history.free(live.pop(0))

    kept = kept_of(of_steps(body))
    assert kept is not None
    assert kept.bytes_per_step == 2 * MIB


def test_sums_leaks_and_names_largest() -> None:
    def body(history: History, step: int) -> None:
        history.ask(KIB, "aten::mean")
        history.ask(MIB, "aten::relu")

    history = of_steps(body)
    trace = history.trace()
    kept = kept_by(trace, tuple(history.ends))
    assert kept is not None
    assert kept.bytes_per_step == MIB + KIB
    assert place_of(trace, kept) == "aten::relu"
    lines = {row: "train.py:7" for row in kept.rows if trace.size_bytes[row] == KIB} | {
        row: "train.py:9" for row in kept.rows if trace.size_bytes[row] == MIB
    }
    trace.header[LOOPS]["kept"] = [[row, line] for row, line in lines.items()]
    assert place_of(trace, kept) == "train.py:9"


def test_few_steps_give_no_judgement() -> None:
    def body(history: History, step: int) -> None:
        history.ask(MIB, "aten::mean")
        if step == 0:
            history.ask(7 * MIB, "first")

    def once(history: History, step: int) -> None:
        if step == 3:
            history.ask(7 * MIB, "late")

    kept = kept_so_far(of_steps(body, 5).trace(), tuple(of_steps(body, 5).ends))
    assert kept is not None
    assert kept.bytes_per_step == MIB
    assert kept_so_far(of_steps(once, 5).trace(), tuple(of_steps(once, 5).ends)) is None


def test_replaced_blocks_are_no_growth() -> None:
    history = History()
    bucket = history.ask(26 * MIB, "DistributedDataParallel")
    for step in range(3):
        if step == 1:
            history.ask(20 * MIB, "DistributedDataParallel.forward")
            history.ask(6 * MIB, "DistributedDataParallel.forward")
            history.free(bucket)
        history.free(history.ask(3 * MIB))
        history.step()
    assert kept_so_far(history.trace(), tuple(history.ends)) is None
    assert to_watch(history.trace()) == []


def test_workspace_of_first_pass_is_no_growth() -> None:
    def body(history: History, step: int) -> None:
        if step == 1:  # a place before the first pass is the first "end" of a loop of passes
            history.ask(8 * MIB, "aten::addmm")

    history = of_steps(body, 3)
    assert kept_so_far(history.trace(), tuple(history.ends)) is None
    assert to_watch(history.trace()) == []


# ------------------------------------------------------------------------------------------------ watched loops
def keeps(history: History, step: int) -> None:
    history.ask(MIB, "aten::mean")


def test_watches_loop_by_request_count() -> None:
    (watch,) = to_watch(of_steps(keeps, 3).trace())
    assert (watch.number, watch.is_training, watch.steps) == (0, True, 128)

    def busy(history: History, step: int) -> None:
        keeps(history, step)
        for _ in range(300):
            history.free(history.ask(KIB))

    (watch,) = to_watch(of_steps(busy, 3).trace())
    assert watch.steps == 60_000 // 904


@pytest.mark.parametrize("steps", [3, 200])
def test_skips_settled_or_ended_loop(steps: int) -> None:
    assert to_watch(of_steps(lambda history, step: None, steps).trace()) == []
    assert to_watch(of_steps(keeps, steps).trace(is_open=False)) == []


@pytest.mark.parametrize("said", ["x", {"all": 3}, {"all": [{"number": 0}]}, {"all": [{"ends": [5, 1]}]}])
def test_rejects_damaged_loops(said: Any) -> None:
    with pytest.raises(TraceFileError, match="loops are damaged"):
        loops_of(Trace.build({"action": [], "size_bytes": [], "block": []}, header={LOOPS: said}))


# ------------------------------------------------------------------------------------------------ the card
def full(history: History, card_bytes: int, by: int, context_bytes: int = 0) -> int:
    return RepeatedSteps.of(history.trace(), history.ends, Settings(), bytes_per_step=by).full_at(card_bytes, context_bytes)


def test_full_step_matches_allocator() -> None:
    def body(history: History, step: int) -> None:
        history.ask(7 * MIB, "aten::mean")  # two to a segment of 20 MiB

    for card_mib in (500, 1000, 2000, 9000):
        long = of_steps(body, 2000)
        found = full(of_steps(body, 8), card_mib * MIB, 7 * MIB)
        assert found == full(long, card_mib * MIB, 7 * MIB)
        assert abs(found - (card_mib - 40) / 10) < 6


def test_extrapolates_linearly() -> None:
    def body(history: History, step: int) -> None:
        history.ask(512, "aten::mean")

    found = full(of_steps(body, 8), 2**40, 512)
    assert found == pytest.approx(2**31, rel=1e-3)


def test_repeats_alternating_steps_together() -> None:
    def body(history: History, step: int) -> None:
        if step % 3 == 0:
            history.ask(12 * MIB, "aten::mean")

    assert full(of_steps(body, 16), 1200 * MIB, 4 * MIB) == full(of_steps(body, 600), 1200 * MIB, 4 * MIB)


def test_falls_back_to_bytes_per_step() -> None:
    def body(history: History, step: int) -> None:
        history.free(history.ask((step + 1) * 512, "aten::to"))
        history.ask(20 * MIB, "aten::mean")

    assert full(of_steps(body, 16), 2000 * MIB, 20 * MIB) == pytest.approx(2000 / 20 - 2, abs=2)


# ------------------------------------------------------------------------------------------------ text
def growth(phase: str = "training", *, full_at_step: int = 100, known: int | None = None, is_judged: bool = True) -> Growth:
    return Growth(2 * MIB, phase, "train.py:7", full_at_step, known, 64, 10 * 2**30, is_judged)


@pytest.mark.parametrize(
    ("one", "card_bytes", "fills"),
    [
        (growth(known=99), 10 * 2**30, False),
        (growth(known=100), 10 * 2**30, True),
        (growth(known=100), 10 * 2**30 + 2 * MIB, False),
        (growth(known=50), 10 * 2**30 - 100 * MIB, True),
        (growth(), 10 * 2**30, False),
        (growth(known=1000, is_judged=False), 10 * 2**30, False),
    ],
)
def test_known_long_loop_fills_card(one: Growth, card_bytes: int, fills: bool) -> None:
    assert one.fills(card_bytes) is fills


@pytest.mark.parametrize("n_steps", [5, 16, 17, 300])
def test_reserved_at_end_matches_allocator(n_steps: int) -> None:
    def body(history: History, step: int) -> None:
        history.ask(7 * MIB, "aten::mean")

    def reserved(n_seen: int) -> int:
        history = of_steps(body, n_seen)
        return RepeatedSteps.of(history.trace(), history.ends, Settings(), bytes_per_step=7 * MIB).reserved_after(n_steps)

    assert reserved(16) == reserved(max(n_steps, 16))


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (growth(), "each training step keeps 2.0 MiB more, requested at train.py:7: the card is full in step 100"),
        (growth(known=300), "the card is full in step 100 of 300"),
        (growth("evaluation", known=30), "each evaluation batch keeps 2.0 MiB more"),
        (growth(known=30), "the card would be full in step 100, but the loop ends after 30"),
        (growth(is_judged=False), "only 64 steps were observed, too few to tell whether the growth stops"),
    ],
)
def test_growth_as_text(one: Growth, said: str) -> None:
    assert said in str(one)
