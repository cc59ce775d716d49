"""Edits of a trace: missing facts are inserted as events where they happen, so that they move the peak there.

A corrected workspace changes the size of its block (`resized`), and memory taken outside the allocator becomes a CONTEXT
row (`with_context`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vramcast.core.errors import UsageError
from vramcast.tracer.format.operators import Operator
from vramcast.tracer.format.trace import Action, Trace


def with_context(trace: Trace, taken: Sequence[tuple[int, int]]) -> Trace:
    """Return the trace with CONTEXT rows: memory that the process takes outside the allocator, permanently.

    Args:
        trace: Any trace.
        taken: (row before which it happens, bytes), ascending by row.
    """
    rows = [row for row, _ in taken]
    events: dict[str, npt.ArrayLike] = {
        "action": [Action.CONTEXT] * len(rows),
        "size_bytes": [size_bytes for _, size_bytes in taken],
        "block": [-1] * len(rows),
    }
    if len(trace):  # it happens in the same step and phase as the row
        following = np.minimum(np.array(rows, np.int64), len(trace) - 1)
        events |= {name: getattr(trace, name)[following] for name in ("step", "phase", "time_us")}
    return trace.insert(rows, events)


def first_row(trace: Trace, is_wanted: Callable[[Operator], bool]) -> int | None:
    """Return the first row of an operator for which `is_wanted` returns true; None if there is none."""
    rows = np.flatnonzero(trace.where(is_wanted))
    return int(rows[0]) if len(rows) else None


def resized(trace: Trace, sizes: Mapping[int, int]) -> Trace:
    """Return the trace with new block sizes.

    Args:
        trace: Any trace.
        sizes: {row of the block's ALLOC: bytes}; a block of 0 bytes is left out.
    """
    rows = np.array(sorted(sizes), np.int64)
    outside = rows[(rows < 0) | (rows >= len(trace))]
    if len(outside):
        raise UsageError(f"Row {outside[0]} is not in the trace: give one from 0 to {len(trace) - 1}.")
    if not (trace.action[rows] == Action.ALLOC).all():
        raise UsageError("Some rows with sizes are not ALLOC rows: name a block by the row of its ALLOC.")
    of_block = np.full(len(trace) + 1, -1)
    of_block[rows] = [sizes[row] for row in rows.tolist()]
    of_block[-1] = -1  # for rows without a block
    wanted = of_block[trace.block]
    size_bytes = np.where(wanted >= 0, wanted, trace.size_bytes)
    # The final layout and the peaks belong to the old sizes.
    header = {key: value for key, value in trace.header.items() if key != "peaks"}
    changed = replace(trace, size_bytes=size_bytes, header=header, segments=None, blocks=None)
    return changed.without_blocks(rows[size_bytes[rows] == 0])
