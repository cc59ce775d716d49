"""Curves over the rows of a trace, its peaks, and the owners of the bytes at a peak.

Sizes are bytes as `Trace` counts them: a block is its request rounded up to 512 B and lives until FREE_COMPLETED. Blocks
older than the trace do not count. The value of a curve at row r is the state right after event r.

    row   action                     live   reserved    context    process
      0   CONTEXT 1,000,000             0          0  1,000,000  1,000,000
      1   SEGMENT_ALLOC 2,097,152       0  2,097,152  1,000,000  3,097,152
      2   ALLOC 4,000               4,096  2,097,152  1,000,000  3,097,152
      3   FREE_REQUESTED 4,000      4,096  2,097,152  1,000,000  3,097,152     nothing changes: not drawn
      4   FREE_COMPLETED 4,000          0  2,097,152  1,000,000  3,097,152
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from vramcast.core.errors import UsageError
from vramcast.tracer.format.trace import Action, Category, Phase, Trace

_MIN_POINTS: Final = 4  # spec: three of one bucket and the last row, see `sampled_rows`

Rows = npt.NDArray[np.int64]
SizesBytes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Peak:
    """One moment of a trace: the state right after event `row`; row -1 is before the first event."""

    row: int
    context_bytes: int
    reserved_bytes: int
    by_category: dict[Category, int]

    @property
    def live_bytes(self) -> int:
        """Return the sum over all categories."""
        return sum(self.by_category.values())

    @property
    def process_bytes(self) -> int:
        """Return the bytes of context and segments."""
        return self.context_bytes + self.reserved_bytes


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """The live blocks of one category allocated by one operator in one module; "" is unknown."""

    module: str
    op: str
    category: Category
    size_bytes: int
    n_blocks: int


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows `first` up to but not including `end`, all of one step (-1: before the first) and one phase."""

    first: int
    end: int
    step: int
    phase: Phase


def live_bytes(trace: Trace, category: Category | None = None) -> SizesBytes:
    """Return live bytes after every row, int64 [rows]: of all blocks, or of those of one category."""
    sizes = trace.rounded_bytes()
    return trace.live(sizes if category is None else np.where(trace.category == category, sizes, 0))


def context_bytes(trace: Trace) -> SizesBytes:
    """Return the bytes that the process has taken outside the allocator after every row, int64 [rows]; they never decrease."""
    return np.cumsum(np.where(trace.action == Action.CONTEXT, trace.size_bytes, 0))


def process_bytes(trace: Trace) -> SizesBytes:
    """Return context and segments after every row, int64 [rows]: the process's memory in nvidia-smi."""
    return context_bytes(trace) + trace.reserved_bytes()


def knows_segments(trace: Trace) -> bool:
    """Return whether the trace has segments; without them, the reserved memory is unknown."""
    return bool((trace.reserved_bytes() > 0).any())


def changed_rows(trace: Trace) -> Rows:
    """Return the rows at which a block of this trace or a part of a segment begins or ends."""
    ends_block = (trace.action == Action.FREE_COMPLETED) & (trace.block >= 0)
    return np.flatnonzero((trace.action == Action.ALLOC) | ends_block | trace.is_segment_event())


def peak_of_live(trace: Trace) -> Peak:
    """Return the first moment with the most live bytes."""
    _, row = trace.peak_live()
    return _moment(trace, row)


def peak_of_process(trace: Trace) -> Peak:
    """Return the first moment with the most bytes in context and segments; row -1 in a trace without segments.

    If the last segment makes the peak, the block that needed it follows in the next row.
    """
    return _moment(trace, int(np.argmax(process_bytes(trace))) if knows_segments(trace) else -1)


def highest_bytes(trace: Trace) -> int:
    """Return the highest value in a drawing of the trace: the context plus the larger of segments and blocks."""
    upon = np.maximum(live_bytes(trace), trace.reserved_bytes())
    return int((context_bytes(trace) + upon).max(initial=0))


def _moment(trace: Trace, row: int) -> Peak:
    context, reserved = (int(curve[row]) if row >= 0 else 0 for curve in (context_bytes(trace), trace.reserved_bytes()))
    return Peak(row, context, reserved, trace.by_category_at(row))


def groups_at(trace: Trace, row: int) -> list[BlockGroup]:
    """Return the blocks that live right after event `row`, by (module, operator, category), in order of appearance."""
    live = trace.live_at(row)
    n_ops, n_categories = len(trace.ops) + 1, len(Category)
    keys = ((trace.module[live].astype(np.int64) + 1) * n_ops + trace.op[live] + 1) * n_categories + trace.category[live]
    unique, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    sizes = np.zeros(len(unique), np.int64)
    np.add.at(sizes, inverse, trace.rounded_bytes()[live])
    # Tables may contain a name twice, so equal names are merged here.
    merged: dict[tuple[str, str, Category], tuple[int, int]] = {}
    for index in np.argsort(first).tolist():
        rest, category = divmod(int(unique[index]), n_categories)
        module, op = (number - 1 for number in divmod(rest, n_ops))
        key = (trace.modules[module] if module >= 0 else "", trace.ops[op] if op >= 0 else "", Category(category))
        size_bytes, n_blocks = merged.get(key, (0, 0))
        merged[key] = (size_bytes + int(sizes[index]), n_blocks + int(counts[index]))
    return [BlockGroup(*key, size_bytes, n_blocks) for key, (size_bytes, n_blocks) in merged.items()]


def top_groups(trace: Trace, row: int, n: int) -> list[BlockGroup]:
    """Return the `n` largest of `groups_at`, largest first."""
    return sorted(groups_at(trace, row), key=lambda group: -group.size_bytes)[:n]


def bytes_by_module(trace: Trace, row: int) -> dict[str, int]:
    """Return live bytes right after event `row` by module, largest first; "" is outside all modules."""
    totals: dict[str, int] = {}
    for group in groups_at(trace, row):
        totals[group.module] = totals.get(group.module, 0) + group.size_bytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def spans(trace: Trace) -> list[RowSpan]:
    """Return the stretches of equal step and phase, in order; together they cover all rows."""
    if not len(trace):
        return []
    new = (trace.step[1:] != trace.step[:-1]) | (trace.phase[1:] != trace.phase[:-1])
    edges = [0, *(np.flatnonzero(new) + 1).tolist(), len(trace)]
    return [RowSpan(first, end, int(trace.step[first]), Phase(trace.phase[first])) for first, end in pairwise(edges)]


def steps(trace: Trace) -> list[tuple[int, int, int]]:
    """Return (first row, end, step) of the stretches of equal step, without the rows before step 0.

    A row that a tracer files under an earlier step than the current one belongs to the current one.
    """
    begun = np.maximum.accumulate(trace.step) if len(trace) else trace.step
    firsts = np.flatnonzero(np.diff(begun, prepend=-1)).tolist()
    return [(first, end, int(begun[first])) for first, end in pairwise([*firsts, len(trace)])]


def sampled_rows(trace: Trace, max_points: int) -> Rows:
    """Return at most `max_points` of the changed rows and the CONTEXT rows, ascending, for a step plot.

    If there are more, they are cut into buckets. Each bucket keeps the first row with the most live bytes, the first with
    the fewest, and the first with the most process bytes. So both peaks of the trace are always included, and so is the
    last change.
    """
    if max_points < _MIN_POINTS:
        raise UsageError(f"max_points is {max_points}, expected {_MIN_POINTS} or more.")
    rows = np.union1d(changed_rows(trace), np.flatnonzero(trace.action == Action.CONTEXT))
    if len(rows) <= max_points:
        return rows
    live, process = live_bytes(trace)[rows], process_bytes(trace)[rows]
    edges = np.linspace(0, len(rows), (max_points - 1) // 3 + 1).astype(np.int64).tolist()
    kept = {len(rows) - 1}
    for first, end in pairwise(edges):
        kept |= {first + int(np.argmax(live[first:end])), first + int(np.argmin(live[first:end]))}
        kept.add(first + int(np.argmax(process[first:end])))
    return rows[sorted(kept)]


def live_by_category(trace: Trace, rows: Rows) -> SizesBytes:
    """Return live bytes right after each of `rows`, int64 [categories, rows]."""
    # One category at a time: the curves of all categories over all rows of a long trace would take gigabytes.
    return np.array([live_bytes(trace, category)[rows] for category in Category]).reshape(len(Category), len(rows))
