"""The placement of blocks as rectangles of offset x time, for the caching allocator and for a plan of the same blocks.

    GiB |####   |         |        |   both with the same axes, for comparison; a line at the peak of live blocks,
        |##  ###|   ->    |##  ### |   which no placement can undercut
        |#######|         |####### |
        '-------'         '--------'

`by_address` takes the placement from a trace, `Packing` that of a plan. `save` draws one or more side by side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.plans.lifetimes import Lifetimes
from vramcast.tracer.format.trace import Action, Trace, place
from vramcast.views import charts, style
from vramcast.views.charts import png, svg
from vramcast.views.charts.chart import INK, LIGHT_GREY, Chart, Series
from vramcast.views.charts.page import render

_SIDE: Final = 520  # arbitrary: side of a chart in the page, in its units
_NAMED: Final = 800  # arbitrary: number of the largest blocks of a chart, which have a tooltip
_NAME_LIMIT: Final = 60  # arbitrary: characters of a module's path
ENDINGS: Final = (".png", ".html")

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """A placement of the blocks of a trace.

    Attributes:
        name: The placer.
        offset_bytes: int64[n], offsets of the blocks allocated in the trace, in order of allocation, from 0.
        height_bytes: Size of the whole placement.
        segments: int64[m, 4], first row, end row, offset and size in bytes of the reserved memory; may be empty.
    """

    name: str
    offset_bytes: Column
    height_bytes: int
    segments: Column


def by_address(trace: Trace) -> Packing:
    """Return the placement of the caching allocator, without unused address ranges.

    If segments were released and others reserved at new addresses, the drawing is higher than the reserved peak.

    Args:
        trace: A trace with addresses and segments, from the null GPU or `Simulation.replayed`.
    """
    row = np.flatnonzero(trace.action == Action.ALLOC).astype(np.int64)
    address = trace.address.astype(np.int64)
    segments = _segments(trace, address)
    starts = np.concatenate([address[row], segments[:, 2]])
    ends = starts + np.concatenate([trace.rounded_bytes()[row], segments[:, 3]])
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends
    is_first = np.append(True, starts[1:] > reach[:-1]) if len(order) else np.empty(0, bool)
    unused = np.where(is_first, starts - np.append(0, reach[:-1]), 0).cumsum() if len(order) else starts

    def offset(at: Column) -> Column:
        return np.asarray(at - unused[np.searchsorted(starts, at, side="right") - 1]) if len(at) else at

    segments[:, 2] = offset(segments[:, 2])
    reserved_bytes = int(trace.reserved_bytes().max(initial=0))
    return Packing("caching allocator", offset(address[row]), reserved_bytes, segments)


def _segments(trace: Trace, address: Column) -> Column:
    """Return first row, end row, address and size of every stretch of reserved memory, int64[m, 4]."""
    open_: dict[int, tuple[int, int]] = {}  # address -> (first row, size)
    closed: list[tuple[int, int, int, int]] = []
    for row in np.flatnonzero(trace.is_segment_event()).tolist():
        at, size_bytes = int(address[row]), int(trace.size_bytes[row])
        if trace.action[row] in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            open_[at] = (row, size_bytes)
            continue
        end = at + size_bytes
        for start in [start for start, (_, size) in open_.items() if start < end and start + size > at]:
            first, size = open_.pop(start)
            closed.append((first, row, start, size))
            # The rest of a stretch with some released pages becomes a new stretch.
            if start < at:
                open_[start] = (row, at - start)
            if start + size > end:
                open_[end] = (row, start + size - end)
    closed += [(first, len(trace), start, size) for start, (first, size) in open_.items()]
    return np.array(closed, np.int64).reshape(-1, 4)


def save(trace: Trace, packings: Sequence[Packing], path: str | os.PathLike[str], *, title: str = "") -> None:
    """Draw the packings of `trace` side by side and write them to `path`.

    Args:
        trace: The trace of the blocks.
        packings: At least one packing.
        path: A path with the extension .png (needs matplotlib) or .html (one page, no script, no network).
        title: The job's name.
    Raises:
        UsageError: The extension is unknown, or matplotlib is missing.
        OutputError: The file cannot be written.
    """
    drawings: dict[str, Callable[..., str | bytes]] = {".png": draw_png, ".html": draw_html}
    charts.save(path, {ending: partial(draw, trace, packings, title=title) for ending, draw in drawings.items()})


def draw_png(trace: Trace, packings: Sequence[Packing], *, title: str = "") -> bytes:
    """Return the packings side by side as a PNG; matplotlib must be installed. For the arguments, see `save`."""
    return png.draw(_charts(trace, packings), printable(title))


def draw_html(trace: Trace, packings: Sequence[Packing], *, title: str = "") -> str:
    """Return the packings side by side as one page without a script. For the arguments, see `save`."""
    drawn = _charts(trace, packings)
    return render(
        "placement.html",
        title=printable(title) if title else "Placement of blocks",
        summary=[chart.title for chart in drawn],
        charts=[svg.draw(chart) for chart in drawn],
    )


def _charts(trace: Trace, packings: Sequence[Packing]) -> list[Chart]:
    """Return one chart per packing, all with the same axes: reserved memory, large blocks, small blocks."""
    peak_bytes, _ = trace.peak_live()
    blocks, category = Lifetimes.of(trace), trace.category[trace.action == Action.ALLOC]
    ends = [int((packing.offset_bytes + blocks.size_bytes).max(initial=0)) for packing in packings]
    ends += [int((packing.segments[:, 2] + packing.segments[:, 3]).max(initial=0)) for packing in packings]
    across, up = style.event_axis(trace), style.byte_axis(style.top_bytes(max(ends, default=0), None))
    is_large = np.zeros(len(blocks), bool)
    is_large[np.argsort(-blocks.size_bytes * (blocks.death - blocks.birth), kind="stable")[:_NAMED]] = True
    drawn = []
    for packing in packings:
        first, end, low, size = packing.segments.T
        series = [Series("fragmentation", "boxes", first, low + size, LIGHT_GREY, low, end)]
        # Small blocks come last: they lie in gaps, and a large block's edge must not hide one smaller than a pixel.
        for large in (True, False):
            for kind, look in style.LOOKS.items():
                of = np.flatnonzero((category == kind) & (is_large == large))
                first, end, low, size = blocks.birth[of], blocks.death[of], packing.offset_bytes[of], blocks.size_bytes[of]
                titles = [
                    f"{look.name} {gib(size_bytes)}, {place(trace, row, _NAME_LIMIT)}, rows {row:,} to {death:,}"
                    for row, death, size_bytes in zip(first.tolist(), end.tolist(), size.tolist(), strict=True)
                    if large
                ]
                series.append(Series(look.name, "boxes", first, low + size, look.colour, low, end, titles))
        series.append(Series(f"allocated peak {gib(peak_bytes)}", "level", (), (peak_bytes,), INK))
        above = f", {packing.height_bytes / peak_bytes:.3f} times the allocated peak" if peak_bytes else ""
        name = f"{packing.name}: {gib(packing.height_bytes)}{above}"
        drawn.append(Chart(name, across, up, tuple(series), width=_SIDE, height=_SIDE))
    return drawn
