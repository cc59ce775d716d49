"""Memory that a loop keeps from step to step: its size, its allocation site, and the step that fills the card.

In a settled loop, each step frees the blocks left by the step before, so equal blocks are alive at the end of each step. A
growing loop shows there: more and more blocks outlive the next step, or a block that each step makes anew becomes larger.
Requests are grouped by operator and module, with young blocks (of the last step) apart from old ones, so that batches of
varying size, which leave nothing behind, neither hide growth nor look like it.

    live at the end of step      1     2     3     4     5     6     7     8  ...
    young, aten::mm             64    48    64    16    64    32    16    64       settled: it changes, and does not rise
    old, aten::mean              -   0.5   1.0   1.5   2.0   2.5   3.0   3.5       grows by 0.5 a step
    old, Adam                    -   128   128   128   128   128   128   128       settled: the state of the first step
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief
from vramcast.core.text import printable
from vramcast.core.units import MIB, gib
from vramcast.tracer.format.loops import loops_of
from vramcast.tracer.format.trace import LOOPS, Action, Trace
from vramcast.tracer.protocol.run_options import LEAST_WATCHED, MOST_WATCHED, WATCHED_EVENTS, LoopWatch

_SHOWN: Final = 28  # arbitrary: the end of a path that leaves the first line of an answer whole up to it
_WARM_SHARE: Final = 4  # arbitrary: the first 1 / _WARM_SHARE of the steps may make blocks that are kept for good
_PARTS: Final = 4  # arbitrary: the loop must grow in each of this many parts of the other steps
_EVEN: Final = 2  # arbitrary: the largest ratio between the growth of two parts
_LEAST_STEPS: Final = 3  # spec: the first makes blocks kept for good, the second those that the third would free

Array = npt.NDArray[np.int64]


@brief
@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that one loop of a job keeps from step to step.

    Attributes:
        bytes_per_step: Bytes kept per step, in the allocator's blocks.
        phase: training, evaluation or generation.
        where: The line of the user's code that requested most of it, `train.py:41`, or else the operator.
        full_at_step: The step that fills the card; 0 if it is full before the loop.
        steps_known: Number of steps of the loop, if known.
        steps_seen: Number of observed steps.
        card_bytes: Size of the card.
        is_judged: Whether enough steps were observed to tell growth from a settled loop.
        reserved_at_end: Reserved bytes at the end of an evaluation of known length, or of a loop observed to its end, which
            every bound covers; None if unknown.
    """

    bytes_per_step: int
    phase: str
    where: str
    full_at_step: int
    steps_known: int | None
    steps_seen: int
    card_bytes: int
    is_judged: bool = True
    reserved_at_end: int | None = None

    def __str__(self) -> str:
        """Return the growth as a sentence."""
        step, many = ("batch", "batches") if self.phase == "evaluation" else ("step", "steps")
        size = gib(self.bytes_per_step) if self.bytes_per_step >= MIB else f"{self.bytes_per_step:,} bytes"
        kept = f"each {self.phase} {step} keeps {size} more, requested at {printable(self.where, _SHOWN)}"
        if not self.is_judged:
            return f"{kept}; only {self.steps_seen} {many} were observed, too few to tell whether the growth stops"
        if self.steps_known is None:
            return f"{kept}: the card is full in {step} {self.full_at_step:,}"
        if self.full_at_step <= self.steps_known:
            return f"{kept}: the card is full in {step} {self.full_at_step:,} of {self.steps_known:,}"
        return f"{kept}: the card would be full in {step} {self.full_at_step:,}, but the loop ends after {self.steps_known:,}"

    def fills(self, card_bytes: int) -> bool:
        """Return whether the loop is known to fill a card; for a card other than the job's own, by linear extrapolation."""
        later = (card_bytes - self.card_bytes) // self.bytes_per_step
        return self.is_judged and self.steps_known is not None and self.full_at_step + later <= self.steps_known

    def to_dict(self) -> dict[str, Any]:
        """Return the growth as JSON values."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("card_bytes", "reserved_at_end")}


@dataclass(frozen=True, slots=True)
class GrowingBlocks:
    """The growing blocks of a loop.

    Attributes:
        bytes_per_step: Bytes per step, in blocks.
        rows: Requests of the growing blocks alive at the end, without those of the first steps.
    """

    bytes_per_step: int
    rows: tuple[int, ...]


# ------------------------------------------------------------------------------------------------ the rule
def grows(live_bytes: Iterable[int]) -> float:
    """Return the growth in bytes per step of a series of live bytes at the ends of steps; 0 if it settles.

    A series grows if it never shrinks after the first steps, and grows about equally in each part of the others.
    """
    live = np.array(list(live_bytes), np.int64)
    steps = np.diff(live[len(live) // _WARM_SHARE :])
    parts = [int(part.sum()) for part in np.array_split(steps, _PARTS)]
    if len(steps) < _PARTS or steps.min() < 0 or not 0 < max(parts) <= _EVEN * min(parts):
        return 0
    at = np.flatnonzero(steps)  # count whole periods if it grows only every tenth step
    return float(steps[at[0] + 1 :].sum() / (at[-1] - at[0])) if len(at) > 1 else float(steps.mean())


def kept_by(trace: Trace, ends: tuple[int, ...]) -> GrowingBlocks | None:
    """Return the blocks that a loop keeps from step to step; None if it settles.

    Args:
        trace: Trace of the job.
        ends: For each step of the loop, the row after its last one.
    """
    live, group, alive = _at_ends(trace, ends)
    found = [(row, by) for row in range(len(live)) if (by := grows(live[row]))]
    if not found:
        return None
    growing = np.isin(group, [row for row, _ in found]) & (alive >= ends[len(ends) // _WARM_SHARE])
    return GrowingBlocks(max(round(sum(by for _, by in found)), 1), tuple(alive[growing].tolist()))


def kept_so_far(trace: Trace, ends: tuple[int, ...]) -> GrowingBlocks | None:
    """Return the blocks that every step of a short loop has kept from the third on; None if not every step has.

    It does not predict whether a longer loop would continue to grow.
    """
    if len(ends) < _LEAST_STEPS:
        return None
    live, group, alive = _at_ends(trace, ends)
    if _is_level(live):
        return None
    rises = np.where((np.diff(live[1::2, 1:], axis=1) > 0).all(axis=1), live[1::2, -1] - live[1::2, 1], 0)
    if not rises.any():
        return None
    growing = np.isin(group, 2 * np.flatnonzero(rises) + 1) & (alive >= ends[0])
    return GrowingBlocks(max(round(int(rises.sum()) / (len(ends) - 2)), 1), tuple(alive[growing].tolist()))


def may_grow(trace: Trace, ends: tuple[int, ...]) -> float:
    """Return the average growth in bytes per step between the second and the last observed step."""
    if len(ends) < _LEAST_STEPS:
        return 0
    live, _, _ = _at_ends(trace, ends)
    if _is_level(live):
        return 0
    return float(np.maximum(live[:, -1] - live[:, 1], 0).sum()) / (len(ends) - 2)


def _is_level(live: Array) -> bool:
    """Return whether as many bytes are alive at the end of each step but the first: blocks may replace others, as DDP's new
    buckets do. The first pass of a model allocates workspaces that are kept.
    """
    return bool(np.ptp(live[:, 1:].sum(axis=0)) == 0)


def _at_ends(trace: Trace, ends: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return live bytes by group at the ends of steps [groups, steps], then groups and rows of the blocks alive at the last.

    Even groups count the blocks of the last step, odd groups older blocks.
    """
    n, rows, at = len(ends), np.flatnonzero(trace.action == Action.ALLOC), np.array(ends)
    freed_at = np.full(len(trace) + 1, len(trace))
    freed = np.flatnonzero((trace.action == Action.FREE_COMPLETED) & (trace.block >= 0))
    freed_at[trace.block[freed]] = freed
    born = np.searchsorted(at, rows, side="right")  # the first end at which the block can be alive
    dead = np.searchsorted(at, freed_at[rows], side="right")
    left = dead > born  # the others are allocated and freed within a step
    rows, born, dead = rows[left], born[left], dead[left]
    sizes = trace.rounded_bytes()[rows]
    _, names = np.unique(np.stack([trace.op[rows], trace.module[rows]]), axis=1, return_inverse=True)
    names = names.reshape(-1)
    change = np.zeros((2 * (int(names.max(initial=-1)) + 1), n + 1), np.int64)
    for group, first, behind in (
        (2 * names, born, np.minimum(born + 1, dead)),
        (2 * names + 1, np.minimum(born + 1, dead), dead),
    ):
        np.add.at(change, (group, first), sizes)
        np.add.at(change, (group, behind), -sizes)
    is_alive = dead >= n
    group = 2 * names + (born < n - 1)
    return np.cumsum(change, axis=1)[:, :n], group[is_alive], rows[is_alive]


# ------------------------------------------------------------------------------------------------ loops to watch
def to_watch(trace: Trace) -> list[LoopWatch]:
    """Return the loops to watch: of the open loops that may grow, at most one training loop and one other."""
    found: dict[bool, tuple[float, LoopWatch]] = {}
    for loop in loops_of(trace):
        so_far = may_grow(trace, loop.ends) if loop.is_open else 0
        events = max((loop.ends[-1] - loop.ends[0]) // (len(loop.ends) - 1), 1)
        steps = min(max(WATCHED_EVENTS // events, LEAST_WATCHED), MOST_WATCHED)
        if not so_far or (len(loop.ends) >= steps and kept_by(trace, loop.ends[:steps]) is None):
            continue
        trains = loop.phase == "training"
        if trains not in found or so_far > found[trains][0]:
            found[trains] = so_far, LoopWatch(loop.number, trains, steps)
    return [watch for _, watch in sorted(found.values(), key=lambda one: not one[1].is_training)]


def place_of(trace: Trace, kept: GrowingBlocks) -> str:
    """Return the line that requested most of the growth, or else the operator and its module."""
    lines = {int(row): str(line) for row, line in trace.header.get(LOOPS, {}).get("kept", ())}
    sizes = trace.rounded_bytes()
    by_place: dict[str, int] = {}
    for row in kept.rows:
        operator = trace.operator_at(row)
        place = lines.get(row) or " in ".join(filter(None, (operator.name, operator.module))) or "an unknown place"
        by_place[place] = by_place.get(place, 0) + int(sizes[row])
    return max(by_place, key=lambda place: by_place[place], default="an unknown place")
