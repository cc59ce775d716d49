"""The view as one page: an SVG, two tables, and a little script for the pointer. Nothing comes from the network.

The SVG and the tables stand without the script. Names of modules and operators come from anywhere: in the page they are
escaped, in the script's data no `<` is left, and the script shows them with textContent only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any, Final, TypeAlias

import numpy as np

from vramcast.tracer.describe import shown
from vramcast.tracer.trace import Phase, Trace
from vramcast.units import gib
from vramcast.views import series, style
from vramcast.views.page import PAGE

_MAX_POINTS: Final = 2400  # arbitrary: two a unit of the drawing's width; the page stays below 1 MB
_WIDTH: Final = 1000  # arbitrary: the drawing's units, as the next three
_HEIGHT: Final = 400
_LEFT: Final = 78
_TOP: Final = 40
_STEP_WIDTH: Final = 60  # arbitrary: units between the labels of two steps
_TOP_GROUPS: Final = 40  # arbitrary
_NAME_LIMIT: Final = 100  # arbitrary: characters of a module's path, its end

_Layers: TypeAlias = list[tuple[style.Look, series.SizesBytes]]


def draw(trace: Trace, *, card_bytes: int | None = None, title: str = "") -> str:
    """Return the view as an HTML page, plain ASCII outside of names. Args and meaning: see `vramcast.views.save`."""
    live, process = series.peak_of_live(trace), series.peak_of_process(trace)
    rows = series.sampled_rows(trace, _MAX_POINTS)
    layers = style.layers(trace, rows)
    top = style.top_bytes(series.highest_bytes(trace), card_bytes)
    heading = shown(title) if title else "GPU memory of a trace"
    said = [
        style.peak_words(trace, "live", live.live_bytes, live.row),
        style.peak_words(trace, "process", process.process_bytes, process.row),
    ]
    said += [style.process_words(process)] if process.row >= 0 else []
    said += [style.card_words(card_bytes, process)] if card_bytes is not None else []
    drawing = [
        *_background(trace, top),
        *_curves(trace, rows, layers, top),
        *_marks(live, card_bytes, top, len(trace)),
    ]
    legend = [_swatch(look) + look.name for look, sizes in layers if sizes.any()]
    if series.knows_segments(trace):
        line = '<svg class="key" viewBox="0 0 20 12" aria-hidden="true"><path class="process" d="M0 6H20"/></svg>'
        legend.append(line + style.PROCESS)
    return PAGE.substitute(
        title=escape(heading),
        summary="".join(f"<li>{escape(line)}</li>" for line in said),
        label=escape(f"Stacked bytes by category over the events of the allocator; {'; '.join(said)}"),
        view_box=f"0 0 {_LEFT + _WIDTH + 12} {_TOP + _HEIGHT + 28}",
        drawing="\n".join(drawing),
        legend="".join(f"<li>{item}</li>" for item in legend),
        breakdown=_breakdown(live, process),
        groups=_groups(series.top_groups(trace, live.row, _TOP_GROUPS)),
        data=_data(trace, rows, layers),
    )


def _x(row: int, n_rows: int) -> str:
    return f"{_LEFT + row * _WIDTH / max(n_rows, 1):.1f}".removesuffix(".0")


def _y(size_bytes: int, top: int) -> str:
    return f"{_TOP + _HEIGHT * (1 - max(size_bytes, 0) / top):.1f}".removesuffix(".0")


def _background(trace: Trace, top: int) -> list[str]:
    """Return phases as shades, steps as lines, and the axes."""
    drawn = []
    n_rows, bottom = len(trace), _TOP + _HEIGHT
    for span in style.shaded_spans(trace):
        width = (span.end - span.first) * _WIDTH / n_rows
        x, name = _x(span.first, n_rows), span.phase.name.lower()
        drawn.append(f'<rect class="{name}" x="{x}" y="{_TOP}" width="{width:.1f}" height="{_HEIGHT}"/>')
        if width > 5 * len(name):
            middle = _x((span.first + span.end) // 2, n_rows)
            drawn.append(f'<text class="small" x="{middle}" y="{_TOP - 5}" text-anchor="middle">{name}</text>')
    for size_bytes in style.ticks(top):
        y, label = _y(size_bytes, top), gib(size_bytes) if size_bytes else "0"
        drawn.append(f'<path class="grid" d="M{_LEFT} {y}h{_WIDTH}"/><text x="{_LEFT - 6}" y="{y}" dy="4" ')
        drawn[-1] += f'text-anchor="end">{label}</text>'
    for first, step in style.spaced_steps(trace, _STEP_WIDTH / _WIDTH):
        x = _x(first, n_rows)
        drawn.append(f'<path class="step" d="M{x} {_TOP - 30}V{bottom}"/>')
        drawn.append(f'<text x="{x}" dx="3" y="{_TOP - 20}">step {step}</text>')
    drawn.append(f'<text class="small" x="{_LEFT}" y="{bottom + 18}">events of the allocator, 0 to {n_rows:,}</text>')
    return drawn


def _curves(trace: Trace, rows: series.Rows, layers: _Layers, top: int) -> list[str]:
    """Return the stack and the line of the process."""
    drawn = []
    # Each area reaches down to 0 and the next lower one is painted over it, so that no seam shows between the two.
    heights = np.cumsum([sizes for _, sizes in layers], axis=0)
    for (look, sizes), height in list(zip(layers, heights, strict=True))[::-1]:
        if sizes.any():
            area = f"{_steps(rows, height, len(trace), top)}V{_TOP + _HEIGHT}H{_x(int(rows[0]), len(trace))}Z"
            drawn.append(f'<path fill="{look.colour}" d="{area}"><title>{look.name}</title></path>')
    if series.knows_segments(trace):
        path = _steps(rows, series.process_bytes(trace)[rows], len(trace), top)
        drawn.append(f'<path class="process" d="{path}"><title>{style.PROCESS}</title></path>')
    return drawn


def _steps(rows: series.Rows, sizes: series.SizesBytes, n_rows: int, top: int) -> str:
    """Return the curve as the path of an SVG: each size holds until the next row, the last one to the end."""
    path: list[str] = []
    last = ""
    for row, size_bytes in zip(rows.tolist(), sizes.tolist(), strict=True):
        y = _y(size_bytes, top)
        if not path:
            path.append(f"M{_x(row, n_rows)} {y}")
        elif y != last:
            path.append(f"H{_x(row, n_rows)}V{y}")
        last = y
    return "".join([*path, f"H{_LEFT + _WIDTH}"])


def _marks(live: series.Peak, card_bytes: int | None, top: int, n_rows: int) -> list[str]:
    drawn = []
    if live.row >= 0:
        x, y = _x(live.row, n_rows), _y(live.context_bytes + live.live_bytes, top)
        drawn.append(f'<path class="peak" d="M{x} {y}l-5 -9h10z"><title>live peak {gib(live.live_bytes)}</title></path>')
    if card_bytes is not None and card_bytes <= top:
        y = _y(card_bytes, top)
        drawn.append(f'<path class="card" d="M{_LEFT} {y}h{_WIDTH}"/>')
        drawn.append(f'<text class="cardname" x="{_LEFT + _WIDTH - 4}" y="{y}" dy="14" text-anchor="end">')
        drawn[-1] += f"card {gib(card_bytes)}</text>"
    elif card_bytes is not None:
        drawn.append(f'<text class="cardname" x="{_LEFT + _WIDTH - 4}" y="{_TOP + 14}" text-anchor="end">')
        drawn[-1] += f"card {gib(card_bytes)} is above &#8593;</text>"
    return drawn


def _swatch(look: style.Look) -> str:
    return f'<svg class="key" viewBox="0 0 20 12" aria-hidden="true"><rect width="20" height="12" fill="{look.colour}"/></svg>'


def _bar(size_bytes: int, of_bytes: int, colour: str) -> str:
    share = max(0.0, min(1.0, size_bytes / of_bytes)) if of_bytes else 0.0
    fill = f'<rect width="{100 * share:.1f}" height="10" fill="{colour}"/>'
    return f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{fill}</svg>'


def _breakdown(live: series.Peak, process: series.Peak) -> str:
    """Return the rows of the table of categories."""
    lines = []
    for (look, at_live), (_, at_process) in zip(style.parts(live), style.parts(process), strict=True):
        if not at_live and not at_process:
            continue
        cells = f'<th scope="row">{_swatch(look)}{look.name}</th>'
        for peak, size_bytes in ((live, at_live), (process, at_process)):
            colour = "var(--faint)" if look.colour == "none" else look.colour
            cells += f"<td>{gib(size_bytes)}</td><td>{_bar(size_bytes, style.held_bytes(peak), colour)}</td>"
        lines.append(f"<tr>{cells}</tr>")
    for name in ("reserved", "process") if process.row >= 0 else ():
        sizes = [peak.reserved_bytes if name == "reserved" else peak.process_bytes for peak in (live, process)]
        total = "".join(f"<td>{gib(size_bytes)}</td><td></td>" for size_bytes in sizes)
        lines.append(f'<tr class="total"><th scope="row">{name}</th>{total}</tr>')
    return "\n".join(lines)


def _groups(groups: Sequence[series.Group]) -> str:
    """Return the rows of the table of blocks."""
    lines = []
    for group in groups:
        look = style.LOOKS[group.category]
        names = [escape(shown(name, _NAME_LIMIT)) or "-" for name in (group.module, group.op)]
        cells = f"<td>{gib(group.size_bytes)}</td><td>{group.n_blocks:,}</td><td>{_swatch(look)}{look.name}</td>"
        lines.append(f"<tr>{cells}<td><code>{names[0]}</code></td><td><code>{names[1]}</code></td></tr>")
    return "\n".join(lines)


def _data(trace: Trace, rows: series.Rows, layers: _Layers) -> str:
    """Return what the script needs as JSON, in columns of one entry a point, safe inside of <script>."""
    ops, op = _table(trace.ops, trace.op[rows])
    modules, module = _table(trace.modules, trace.module[rows])
    (_, context), *by_category = layers
    data: dict[str, Any] = {
        "left": _LEFT,
        "width": _WIDTH,
        "n": len(trace),
        "categories": [look.name for look in style.LOOKS.values()],
        "phases": [phase.name.lower() for phase in Phase],
        "row": rows.tolist(),
        "step": trace.step[rows].tolist(),
        "phase": trace.phase[rows].tolist(),
        "ops": ops,
        "op": op,
        "modules": modules,
        "module": module,
        "reserved": trace.reserved_bytes()[rows].tolist(),
        "context": context.tolist(),
        "live": [sizes.tolist() for _, sizes in by_category],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _table(names: Sequence[str], indices: Any) -> tuple[list[str], list[int]]:
    """Return the names which are used, and for each index where its name stands among them; -1 stays -1."""
    used = {index: place for place, index in enumerate(index for index in np.unique(indices).tolist() if index >= 0)}
    return [shown(names[index], _NAME_LIMIT) for index in used], [used.get(index, -1) for index in indices.tolist()]
