"""Where blocks lie and when: rectangles of offset x time, for the caching allocator and for a plan of the same blocks.

    GiB |####   |         |        |   both with the same axes, so that heights compare; a line at the peak of live blocks,
        |##  ###|   ->    |##  ### |   below which none can end
        |#######|         |####### |
        '-------'         '--------'

`by_address` takes the places from a trace, `Packing` takes those of a plan. `save` draws one or more side by side.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.errors import UsageError
from vramcast.files import atomic_write
from vramcast.tracer.describe import shown
from vramcast.tracer.trace import Action, Category, Trace
from vramcast.units import gib
from vramcast.views import check_path, style
from vramcast.views.head import opening
from vramcast.views.page import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES: Final = (13.0, 7.0)  # arbitrary
_DOTS_PER_INCH: Final = 110  # arbitrary: 1430 x 770 pixels
_EDGED_SHARE: Final = 0.004  # arbitrary: of both axes; smaller rectangles have no room for an edge
_WIDTH: Final = 520  # arbitrary: units of a panel in the page, as the next four
_HEIGHT: Final = 520
_LEFT: Final = 78
_TOP: Final = 30
_GAP: Final = 28
_GRID: Final = 2  # arbitrary: places a unit; what rounds to the same rectangle is drawn once
_NAMED: Final = 800  # arbitrary: the largest rectangles of a panel, which say what they are under the pointer
_SEGMENT_COLOUR: Final = "#C8C8C8"  # arbitrary: no category's
_NAME_LIMIT: Final = 60  # arbitrary: characters of a module's path

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Where blocks of a trace lie.

    Attributes:
        name: What placed them.
        row: int64[n], rows of their ALLOCs.
        offset_bytes: int64[n], of each block above 0.
        height_bytes: What all of it takes.
        segments: int64[m, 4], first row, end row, offset and size in bytes of what is reserved around them; may be empty.
    """

    name: str
    row: Column
    offset_bytes: Column
    height_bytes: int
    segments: Column


def by_address(trace: Trace) -> Packing:
    """Return the places which the caching allocator gave, address ranges which nothing ever used left out.

    Args:
        trace: With addresses and segments, as the null GPU and `Simulation.replayed` give.
    Limits: Where segments were given back and others taken at new addresses, the drawing is higher than what was reserved.
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
    return Packing("caching allocator", row, offset(address[row]), reserved_bytes, segments)


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
            # What is left of a stretch of which some pages were given back begins anew.
            if start < at:
                open_[start] = (row, at - start)
            if start + size > end:
                open_[end] = (row, start + size - end)
    closed += [(first, len(trace), start, size) for start, (first, size) in open_.items()]
    return np.array(closed, np.int64).reshape(-1, 4)


def check_chart_path(path: str | os.PathLike[str]) -> None:
    """Raise UsageError unless `save` can draw to `path`."""
    if Path(path).suffix.lower() not in (".png", ".html"):
        raise UsageError(f"Chart '{path}' ends in '{Path(path).suffix}', expected .png or .html: choose one of them.")
    check_path(path)


def save(trace: Trace, packings: Sequence[Packing], path: str | os.PathLike[str], *, title: str = "") -> None:
    """Draw the packings of `trace` side by side and write them to `path`.

    Args:
        trace: Whose blocks they place.
        packings: One at least.
        path: Ends in .png (needs matplotlib) or .html (one page, no script, nothing from the network).
        title: What the trace is of.
    Raises:
        UsageError: Another ending, or a .png without matplotlib.
        OutputError: The file cannot be written.
    """
    check_chart_path(path)
    is_png = Path(path).suffix.lower() == ".png"
    data = draw_png(trace, packings, title=title) if is_png else draw_html(trace, packings, title=title).encode()
    with atomic_write(path) as file:
        file.write(data)


def _deaths(trace: Trace) -> Column:
    """Return for each ALLOC row the row at which its block ends, the trace's length where it does not."""
    ends = np.full(len(trace), len(trace), np.int64)
    completed = np.flatnonzero((trace.action == Action.FREE_COMPLETED) & (trace.block >= 0))
    ends[trace.block[completed]] = completed
    return ends


def _top(trace: Trace, packings: Sequence[Packing]) -> int:
    """Return where the common axis of offsets ends."""
    sizes = trace.rounded_bytes()
    ends = [int((packing.offset_bytes + sizes[packing.row]).max(initial=0)) for packing in packings]
    ends += [int((packing.segments[:, 2] + packing.segments[:, 3]).max(initial=0)) for packing in packings]
    return style.top_bytes(max(ends, default=0), None)


def _words(packing: Packing, peak_bytes: int) -> str:
    """Return how high a packing is."""
    above = f", {packing.height_bytes / peak_bytes:.3f} times the live peak" if peak_bytes else ""
    return f"{packing.name}: {gib(packing.height_bytes)}{above}"


# ------------------------------------------------------------------------------------------------ PNG
def draw_png(trace: Trace, packings: Sequence[Packing], *, title: str = "") -> bytes:
    """Return the packings side by side as a PNG; matplotlib must be installed. Args: see `save`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    top, (peak_bytes, _) = _top(trace, packings), trace.peak_live()
    ticks = style.ticks(top)
    panels = figure.subplots(1, len(packings), sharey=True, squeeze=False)[0]
    for axes, packing in zip(panels, packings, strict=True):
        _panel(axes, trace, packing, top)
        axes.axhline(peak_bytes, color="black", linewidth=1, linestyle="--")
        axes.set_ylim(0, top)
        axes.set_yticks(ticks, [gib(size) if size else "0" for size in ticks])
        axes.set_xlim(0, max(len(trace), 1))
        axes.set_xlabel("events of the allocator")
        axes.set_title(_words(packing, peak_bytes), loc="left", fontsize=10, parse_math=False)
    used = [look for category, look in style.LOOKS.items() if any((trace.category[p.row] == category).any() for p in packings)]
    handles = [Patch(facecolor=look.colour, label=look.name) for look in used]
    if any(len(packing.segments) for packing in packings):
        handles.append(Patch(facecolor=_SEGMENT_COLOUR, label="reserved, no block"))
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.suptitle(f"{shown(title)}\nlive peak {gib(peak_bytes)}: the dashed line", fontsize=10, parse_math=False)
    with warnings.catch_warnings(), io.BytesIO() as file:
        warnings.filterwarnings("ignore", message=r"Glyph \d+", category=UserWarning)
        figure.savefig(file, format="png")
        return file.getvalue()


def _panel(axes: Axes, trace: Trace, packing: Packing, top: int) -> None:
    from matplotlib.collections import PolyCollection

    def corners(first: Any, end: Any, low: Any, size: Any) -> Any:
        x = np.stack([first, end, end, first], axis=1)
        y = np.stack([low, low, low + size, low + size], axis=1)
        return np.stack([x, y], axis=2)

    if len(packing.segments):
        axes.add_collection(PolyCollection(corners(*packing.segments.T), facecolors=_SEGMENT_COLOUR, linewidths=0))
    row, size, death = packing.row, trace.rounded_bytes()[packing.row], _deaths(trace)[packing.row]
    # The small ones last: they lie in gaps, and what is smaller than a pixel must not be lost below a large one's edge.
    order = np.argsort(-size * (death - row), kind="stable")
    looks = list(style.LOOKS.values())
    colours = np.array([look.colour for look in looks])[trace.category[row]]
    has_edge = (size >= _EDGED_SHARE * top) & (death - row >= _EDGED_SHARE * len(trace))
    boxes = corners(row, death, packing.offset_bytes, size)
    axes.add_collection(
        PolyCollection(
            boxes[order],
            facecolors=colours[order].tolist(),
            edgecolors="white",
            linewidths=np.where(has_edge, 0.3, 0)[order],
        )
    )


# ------------------------------------------------------------------------------------------------ HTML
_LIVE: Final = """.live { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 5 3; }
.chart rect.block { stroke: var(--paper); stroke-width: .3; }
"""
_PAGE: Final = Template(
    opening(STYLE + _LIVE)
    + """<main>
<h1>$title</h1>
<ul class="summary">$summary</ul>
<svg class="chart" viewBox="$view_box" role="img" aria-label="$label">
$drawing
</svg>
<ul class="legend" aria-label="Legend">$legend</ul>
<p class="summary">Point at a large block to read what it is.</p>
</main>
</body>
</html>
"""
)


def draw_html(trace: Trace, packings: Sequence[Packing], *, title: str = "") -> str:
    """Return the packings side by side as one page without a script. Args: see `save`."""
    top, (peak_bytes, _) = _top(trace, packings), trace.peak_live()
    heading = shown(title) if title else "Where blocks lie"
    said = [_words(packing, peak_bytes) for packing in packings] + [f"live peak {gib(peak_bytes)}: the dashed line"]
    drawing = []
    for place, packing in enumerate(packings):
        drawing += _drawn(trace, packing, top, _LEFT + place * (_WIDTH + _GAP), is_first=place == 0)
    used = {Category(code) for packing in packings for code in np.unique(trace.category[packing.row]).tolist()}
    keys = [(look.colour, look.name) for category, look in style.LOOKS.items() if category in used]
    if any(len(packing.segments) for packing in packings):
        keys.append((_SEGMENT_COLOUR, "reserved, no block"))
    swatch = '<svg class="key" viewBox="0 0 20 12" aria-hidden="true"><rect width="20" height="12" fill="{}"/></svg>{}'
    return _PAGE.substitute(
        title=escape(heading),
        summary="".join(f"<li>{escape(line)}</li>" for line in said),
        label=escape(f"Blocks as rectangles of offset over the events of the allocator; {'; '.join(said)}"),
        view_box=f"0 0 {_LEFT + len(packings) * (_WIDTH + _GAP)} {_TOP + _HEIGHT + 28}",
        drawing="\n".join(drawing),
        legend="".join(f"<li>{swatch.format(colour, name)}</li>" for colour, name in keys),
    )


def _drawn(trace: Trace, packing: Packing, top: int, left: int, *, is_first: bool) -> list[str]:
    """Return one panel: the axes, what is reserved, the blocks by category, and the largest ones by themselves."""
    per_row, per_byte = _WIDTH / max(len(trace), 1), _HEIGHT / top
    bottom = _TOP + _HEIGHT
    drawn = [f'<text x="{left}" y="{_TOP - 10}">{escape(packing.name)} {gib(packing.height_bytes)}</text>']
    for size_bytes in style.ticks(top):
        y = f"{bottom - size_bytes * per_byte:.1f}"
        drawn.append(f'<path class="grid" d="M{left} {y}h{_WIDTH}"/>')
        if is_first:
            label = gib(size_bytes) if size_bytes else "0"
            drawn.append(f'<text x="{left - 6}" y="{y}" dy="4" text-anchor="end">{label}</text>')
    drawn.append(f'<text class="small" x="{left}" y="{bottom + 18}">events of the allocator, 0 to {len(trace):,}</text>')

    def boxes(first: Column, end: Column, low: Column, size: Column) -> npt.NDArray[np.int64]:
        """Rounded to the grid: x, y, width and height of each in `_GRID`ths of a unit, int64[n, 4]; none vanishes."""
        x, y = first * per_row, (top - low - size) * per_byte
        w, h = (end - first) * per_row, size * per_byte
        rounded: npt.NDArray[np.int64] = np.rint(np.stack([left + x, _TOP + y, w, h], axis=1) * _GRID).astype(np.int64)
        rounded[:, 2:] = np.maximum(rounded[:, 2:], 1)
        return rounded

    drawn.append(_path(boxes(*packing.segments.T), _SEGMENT_COLOUR, "reserved, no block"))
    row, size, death = packing.row, trace.rounded_bytes()[packing.row], _deaths(trace)[packing.row]
    box = boxes(row, death, packing.offset_bytes, size)
    is_named = np.zeros(len(row), bool)
    is_named[np.argsort(-size * (death - row), kind="stable")[:_NAMED]] = True
    for category, look in style.LOOKS.items():
        drawn.append(_path(box[(trace.category[row] == category) & ~is_named], look.colour, look.name))
    looks = list(style.LOOKS.values())
    for i in np.flatnonzero(is_named).tolist():
        x, y, w, h = (f"{n / _GRID:g}" for n in box[i].tolist())
        look, place = looks[trace.category[row[i]]], _block_words(trace, int(row[i]), int(death[i]), int(size[i]))
        drawn.append(
            f'<rect class="block" x="{x}" y="{y}" width="{w}" height="{h}" fill="{look.colour}">'
            f"<title>{look.name} {escape(place)}</title></rect>"
        )
    peak_bytes, _ = trace.peak_live()
    drawn.append(f'<path class="live" d="M{left} {bottom - peak_bytes * per_byte:.1f}h{_WIDTH}"/>')
    return drawn


def _path(boxes: npt.NDArray[np.int64], colour: str, name: str) -> str:
    """Return rectangles of one colour as one path, those of the same place once; "" for none."""
    if not len(boxes):
        return ""
    d = "".join(
        f"M{x / _GRID:g} {y / _GRID:g}h{w / _GRID:g}v{h / _GRID:g}h{-w / _GRID:g}z"
        for x, y, w, h in np.unique(boxes, axis=0).tolist()
    )
    return f'<path fill="{colour}" d="{d}"><title>{name}</title></path>'


def _block_words(trace: Trace, row: int, death: int, size_bytes: int) -> str:
    """Return what a block is: its size, who asked for it, and when it lives."""
    module, op = int(trace.module[row]), int(trace.op[row])
    names = [shown(trace.modules[module], _NAME_LIMIT)] if module >= 0 else []
    names += [shown(trace.ops[op], _NAME_LIMIT)] if op >= 0 else []
    return f"{gib(size_bytes)}{''.join(f', {name}' for name in names)}, rows {row:,} to {death:,}"
