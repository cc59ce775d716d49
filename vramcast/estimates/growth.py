"""What a loop keeps from step to step: how much, who asked for it, and with which step the card is full.

A loop that has settled frees with each step what the one before has left: at the end of its steps, equal blocks are alive. What
one keeps is seen there: blocks which outlive the next step become more and more, or one that each step makes anew becomes
larger. What an operator of a module asked for is counted together, young blocks (of the last step) and old ones apart, so that
batches of other sizes, of which nothing stays, hide nothing and look like nothing.

    live at the end of step      1     2     3     4     5     6     7     8  ...
    young, aten::mm             64    48    64    16    64    32    16    64       settled: it changes, and does not rise
    old, aten::mean              -   0.5   1.0   1.5   2.0   2.5   3.0   3.5       grows by 0.5 a step
    old, Adam                    -   128   128   128   128   128   128   128       settled: the state of the first step
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.core.errors import TraceFileError
from vramcast.core.units import MIB, gib
from vramcast.tracer.format.trace import LOOPS, Action, Trace
from vramcast.tracer.protocol.run_options import LEAST_WATCHED, MOST_WATCHED, LoopWatch

_EVENTS: Final = 60_000  # arbitrary: a loop is watched for so many requests and frees, some seconds
_WARM_SHARE: Final = 4  # arbitrary: one in so many of its steps may make what is kept for good
_PARTS: Final = 4  # arbitrary: in each of so many parts of the other steps it must grow
_EVEN: Final = 2  # arbitrary: in none of them more than so many times as much as in another
_LEAST_STEPS: Final = 3  # spec: the first makes what is kept for good, the second what the third would free

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Growth:
    """What one loop of a job keeps from step to step.

    Attributes:
        bytes_per_step: As the allocator counts them, in blocks.
        phase: training, evaluation or generation.
        where: The line of the user's code that asked for most of it, `train.py:41`; else the operator which did.
        full_at_step: The step in which the card is full; 0: it is full before.
        steps_known: How many steps the loop makes, if that is known.
        steps_seen: How many of them were seen.
        card_bytes: The size of that card.
        is_judged: Whether the steps that were seen were enough to tell growth from what settles.
        reserved_at_end: What the allocator holds at the end of an evaluation of known length, or of a loop that was seen to its
            end, which every bound covers; None: it is not known.
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
        """Return it in words."""
        step = "batch" if self.phase == "evaluation" else "step"
        size = gib(self.bytes_per_step) if self.bytes_per_step >= MIB else f"{self.bytes_per_step:,} bytes"
        kept = f"each {step} of its {self.phase} keeps {size} more, asked for at {self.where}"
        if not self.is_judged:
            return f"{kept}; {self.steps_seen} were seen, too few to tell whether that stops"
        if self.steps_known is None:
            return f"{kept}: the card is full in {step} {self.full_at_step:,}"
        if self.full_at_step <= self.steps_known:
            return f"{kept}: the card is full in {step} {self.full_at_step:,} of {self.steps_known:,}"
        return f"{kept}: the card would be full in {step} {self.full_at_step:,}, and {self.steps_known:,} are made"

    def fills(self, card_bytes: int) -> bool:
        """Return whether the loop is known to go on until a card is full; of another than the job's own in a straight line."""
        later = (card_bytes - self.card_bytes) // self.bytes_per_step
        return self.is_judged and self.steps_known is not None and self.full_at_step + later <= self.steps_known

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("card_bytes", "reserved_at_end")}


@dataclass(frozen=True, slots=True)
class Kept:
    """What of a loop grows.

    Attributes:
        bytes_per_step: In blocks.
        rows: The requests of blocks which are alive at the end, of what grows; not those of the first steps.
    """

    bytes_per_step: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SeenLoop:
    """A loop of a trace, as its header tells it.

    Attributes:
        number: From 0, in the order in which the loops begin.
        phase: As in `Growth`.
        ends: The rows before which its steps ended.
        length: How many steps it makes, if that is known.
        is_open: Whether it goes on behind what was seen.
    """

    number: int
    phase: str
    ends: tuple[int, ...]
    length: int | None
    is_open: bool


def loops_of(trace: Trace) -> list[SeenLoop]:
    """Return the loops that a trace's header tells of.

    Raises:
        TraceFileError: the header is damaged.
    """
    said = trace.header.get(LOOPS)
    if not said:
        return []
    try:
        return [_loop(one, len(trace)) for one in said["all"]]
    except (TypeError, KeyError, ValueError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's loops are damaged ({type(error).__name__}: {error}): record it again.") from None


def _loop(said: Mapping[str, Any], n_rows: int) -> SeenLoop:
    ends = tuple(map(int, said["ends"]))
    if len(ends) < 2 or any(not 0 <= row <= n_rows for row in ends) or any(b < a for a, b in pairwise(ends)):
        raise ValueError(f"steps end at rows {ends[:5]}")
    length = said["length"]
    return SeenLoop(
        int(said["number"]), str(said["phase"]), ends, None if length is None else int(length), bool(said["is_open"])
    )


# ------------------------------------------------------------------------------------------------ the rule
def grows(live_bytes: Iterable[int]) -> float:
    """Return by how many bytes a step something grows that has so many at the ends of the steps; 0: it settles.

    It grows if it never shrinks after the first steps, and about as much in each part of the others.
    """
    live = np.array(list(live_bytes), np.int64)
    steps = np.diff(live[len(live) // _WARM_SHARE :])
    parts = [int(part.sum()) for part in np.array_split(steps, _PARTS)]
    if len(steps) < _PARTS or steps.min() < 0 or not 0 < max(parts) <= _EVEN * min(parts):
        return 0
    at = np.flatnonzero(steps)  # of something that grows with every tenth step, whole periods are counted
    return float(steps[at[0] + 1 :].sum() / (at[-1] - at[0])) if len(at) > 1 else float(steps.mean())


def kept_by(trace: Trace, ends: tuple[int, ...]) -> Kept | None:
    """Return what a loop keeps from step to step; None: it settles.

    Args:
        trace: Of the job.
        ends: Rows before which its steps ended.
    """
    live, group, alive = _at_ends(trace, ends)
    found = [(row, by) for row in range(len(live)) if (by := grows(live[row]))]
    if not found:
        return None
    growing = np.isin(group, [row for row, _ in found]) & (alive >= ends[len(ends) // _WARM_SHARE])
    return Kept(max(round(sum(by for _, by in found)), 1), tuple(alive[growing].tolist()))


def kept_so_far(trace: Trace, ends: tuple[int, ...]) -> Kept | None:
    """Return what each step of a short loop has kept from the third on, of what outlives a step; None: not each has.

    It says nothing of whether a longer one would go on so.
    """
    if len(ends) < _LEAST_STEPS:
        return None
    live, group, alive = _at_ends(trace, ends)
    rises = np.where((np.diff(live[1::2, 1:], axis=1) > 0).all(axis=1), live[1::2, -1] - live[1::2, 1], 0)
    if not rises.any():
        return None
    growing = np.isin(group, 2 * np.flatnonzero(rises) + 1) & (alive >= ends[0])
    return Kept(max(round(int(rises.sum()) / (len(ends) - 2)), 1), tuple(alive[growing].tolist()))


def may_grow(trace: Trace, ends: tuple[int, ...]) -> float:
    """Return by how many bytes a step more is alive behind the last step of what was seen of a loop than behind its second."""
    if len(ends) < _LEAST_STEPS:
        return 0
    live, _, _ = _at_ends(trace, ends)
    return float(np.maximum(live[:, -1] - live[:, 1], 0).sum()) / (len(ends) - 2)


def _at_ends(trace: Trace, ends: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return live bytes of each group at the ends of steps [groups, steps]; the groups of blocks alive at the last; their rows.

    A group has an even number if it counts the blocks of the last step, an odd one if it counts older ones.
    """
    n, rows, at = len(ends), np.flatnonzero(trace.action == Action.ALLOC), np.array(ends)
    freed_at = np.full(len(trace) + 1, len(trace))
    freed = np.flatnonzero((trace.action == Action.FREE_COMPLETED) & (trace.block >= 0))
    freed_at[trace.block[freed]] = freed
    born = np.searchsorted(at, rows, side="right")  # the first end at which it can be alive
    dead = np.searchsorted(at, freed_at[rows], side="right")
    left = dead > born  # the others live and die within a step
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


# ------------------------------------------------------------------------------------------------ which loop, and how long
def to_watch(trace: Trace) -> list[LoopWatch]:
    """Return which loops are to be watched: of those that go on and may grow one that trains, and one that does not."""
    found: dict[bool, tuple[float, LoopWatch]] = {}
    for loop in loops_of(trace):
        so_far = may_grow(trace, loop.ends) if loop.is_open else 0
        events = max((loop.ends[-1] - loop.ends[0]) // (len(loop.ends) - 1), 1)
        steps = min(max(_EVENTS // events, LEAST_WATCHED), MOST_WATCHED)
        if not so_far or (len(loop.ends) >= steps and kept_by(trace, loop.ends[:steps]) is None):
            continue
        trains = loop.phase == "training"
        if trains not in found or so_far > found[trains][0]:
            found[trains] = so_far, LoopWatch(loop.number, trains, steps)
    return [watch for _, watch in sorted(found.values(), key=lambda one: not one[1].is_training)]


def place_of(trace: Trace, kept: Kept) -> str:
    """Return the line which asked for most of what grows, else the operator and its module."""
    lines = {int(row): str(line) for row, line in trace.header.get(LOOPS, {}).get("kept", ())}
    sizes = trace.rounded_bytes()
    by_place: dict[str, int] = {}
    for row in kept.rows:
        operator = trace.operator_at(row)
        place = lines.get(row) or " in ".join(filter(None, (operator.name, operator.module))) or "an unknown place"
        by_place[place] = by_place.get(place, 0) + int(sizes[row])
    return max(by_place, key=lambda place: by_place[place], default="an unknown place")
