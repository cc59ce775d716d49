"""The timeline of a trace as a picture or a page: the stack by category, the peaks, and the owners of the bytes there.

The page's chart and tables work without its script. Names of modules and operators are untrusted: the page escapes them, the
script's data contain no `<`, and the script shows them with textContent only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.simulator import curves
from vramcast.tracer.format.trace import Phase, Trace, step_number
from vramcast.views import style
from vramcast.views.charts import png, svg
from vramcast.views.charts.chart import ALARM, INK, Chart, Series, Shade
from vramcast.views.charts.page import render

if TYPE_CHECKING:
    from markupsafe import Markup

_MAX_POINTS: Final = 2400  # arbitrary: two per unit of the drawing's width; the page stays below 1 MB
_MAX_POINTS_PNG: Final = 6000  # arbitrary: two buckets per pixel
_WIDTH: Final = 1000  # arbitrary: in the drawing's units, like the next one
_HEIGHT: Final = 400
_STEP_SHARE: Final = 0.06  # arbitrary: share of the axis between the labels of two steps
_LETTER_SHARE: Final = 0.005  # arbitrary: share of the axis for each letter of a phase's name
_TOP_GROUPS: Final = 40  # arbitrary
_NAME_LIMIT: Final = 100  # arbitrary: characters of a module's path, its end
# arbitrary: darkness of phases; colours are reserved for categories.
_SHADES: Final = {
    Phase.BUILD: 0.03,
    Phase.DATA: 0.09,
    Phase.FORWARD: 0.0,
    Phase.BACKWARD: 0.06,
    Phase.OPTIMIZER: 0.12,
    Phase.OTHER: 0.03,
}


def draw_png(trace: Trace, *, card_bytes: int | None = None, title: str = "", beside: style.Beside = None) -> bytes:
    """Return the view as a PNG; matplotlib must be installed. For the arguments, see `vramcast.views.save`."""
    lines = [*([printable(title)] if title else []), *_summary(trace, card_bytes)]
    return png.draw(_charts(trace, beside, _MAX_POINTS_PNG, card_bytes), "\n".join(lines))


def draw_html(trace: Trace, *, card_bytes: int | None = None, title: str = "", beside: style.Beside = None) -> str:
    """Return the view as an HTML page. For the arguments, see `vramcast.views.save`."""
    return render(
        "timeline.html",
        title=printable(title) if title else "GPU memory of a trace",
        summary=_summary(trace, card_bytes),
        **content(trace, card_bytes, beside),
    )


def content(trace: Trace, card_bytes: int | None, beside: style.Beside, *, top_groups: int = _TOP_GROUPS) -> dict[str, Any]:
    """Return the content of a page: charts, memory of the process by part, the largest blocks, and the script's data.

    Args:
        trace, card_bytes, beside: See `vramcast.views.save`.
        top_groups: Number of rows in the table of the largest blocks.
    """
    live, process = curves.peak_of_live(trace), curves.peak_of_process(trace)
    totals = [("process", gib(process.process_bytes))]
    groups = [
        (gib(group.size_bytes), f"{group.n_blocks:,}", style.LOOKS[group.category], *_names(group.module, group.op))
        for group in curves.top_groups(trace, live.row, top_groups)
    ]
    charts = _charts(trace, beside, _MAX_POINTS, card_bytes)
    return {
        "charts": [svg.draw(chart, pointed=at == 0) for at, chart in enumerate(charts)],
        "parts": [(look, gib(size), share) for look, size, share in style.shares(trace)],
        "totals": totals if process.row >= 0 else [],
        "groups": groups,
        "data": _data(trace, curves.sampled_rows(trace, _MAX_POINTS)),
    }


def figures(trace: Trace, card_bytes: int | None, beside: style.Beside, max_points: int) -> list[Markup]:
    """Return the charts alone, with at most `max_points` points each, for a page without a script."""
    return [svg.draw(chart) for chart in _charts(trace, beside, max_points, card_bytes)]


def _summary(trace: Trace, card_bytes: int | None) -> list[str]:
    live, process = curves.peak_of_live(trace), curves.peak_of_process(trace)
    said = [
        style.peak_words(trace, "allocated", live.live_bytes, live.row),
        style.peak_words(trace, "process", process.process_bytes, process.row),
    ]
    said += [style.process_words(process)] if process.row >= 0 else []
    return said + ([style.card_words(card_bytes, process)] if card_bytes is not None else [])


def _charts(trace: Trace, beside: style.Beside, max_points: int, card_bytes: int | None) -> list[Chart]:
    """Return the chart of a trace, and that of another rank on the same axis."""
    drawn = style.ranks(trace, beside)
    top = style.top_bytes(max(curves.highest_bytes(one) for _, one in drawn), card_bytes)
    return [_chart(one, curves.sampled_rows(one, max_points), card_bytes, top, name) for name, one in drawn]


def _chart(trace: Trace, rows: curves.Rows, card_bytes: int | None, top: int, name: str) -> Chart:
    live = curves.peak_of_live(trace)
    layers = style.layers(trace, rows)
    heights = np.cumsum([sizes for _, sizes in layers], axis=0)
    # Each area reaches down to 0 and is painted over by the next lower one, so that no seam is visible between them.
    series = [
        Series(look.name, "area", rows, height, look.colour)
        for (look, sizes), height in list(zip(layers, heights, strict=True))[::-1]
        if sizes.any()
    ]
    if curves.knows_segments(trace):
        series.append(Series(style.PROCESS, "steps", rows, curves.process_bytes(trace)[rows], INK))
    if live.row >= 0:
        height = live.context_bytes + live.live_bytes
        series.append(Series(f"allocated peak {gib(live.live_bytes)}", "peak", (live.row,), (height,), INK))
    if card_bytes is not None and card_bytes <= top:
        series.append(Series(f"card {gib(card_bytes)}", "level", (), (card_bytes,), ALARM))
    shades = []
    for span in style.shaded_spans(trace):
        phase = span.phase.name.lower()
        has_room = span.end - span.first > _LETTER_SHARE * len(phase) * len(trace)
        shades.append(Shade(span.first, span.end, phase if has_room else "", _SHADES[span.phase]))
    return Chart(
        name,
        style.event_axis(trace),
        style.byte_axis(top),
        tuple(series),
        tuple(shades),
        tuple((first, f"step {step_number(step)}") for first, step in style.spaced_steps(trace, _STEP_SHARE)),
        note=f"card {gib(card_bytes)} is above ↑" if card_bytes is not None and card_bytes > top else "",
        description="; ".join(["stacked bytes by category", *_summary(trace, card_bytes)]),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _names(*names: str) -> list[str]:
    return [printable(name, _NAME_LIMIT) or "-" for name in names]


def _data(trace: Trace, rows: curves.Rows) -> dict[str, Any]:
    """Return the script's data, in columns with one entry per point."""
    ops, op = _table(trace.ops, trace.op[rows])
    modules, module = _table(trace.modules, trace.module[rows])
    return {
        "left": svg.LEFT,
        "width": _WIDTH,
        "n": len(trace),
        "categories": [look.name for look in style.LOOKS.values()],
        "phases": [phase.name.lower() for phase in Phase],
        "row": rows.tolist(),
        "step": [step_number(step) for step in trace.step[rows].tolist()],
        "phase": trace.phase[rows].tolist(),
        "ops": ops,
        "op": op,
        "modules": modules,
        "module": module,
        "reserved": trace.reserved_bytes()[rows].tolist(),
        "context": curves.context_bytes(trace)[rows].tolist(),
        "live": curves.live_by_category(trace, rows).tolist(),
    }


def _table(names: Sequence[str], indices: Any) -> tuple[list[str], list[int]]:
    """Return the used names, and for each index the position of its name among them; -1 stays -1."""
    used = {index: place for place, index in enumerate(index for index in np.unique(indices).tolist() if index >= 0)}
    return [printable(names[index], _NAME_LIMIT) for index in used], [used.get(index, -1) for index in indices.tolist()]
