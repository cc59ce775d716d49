"""The charts as SVG, for the report: no library, and the page's colours for text and lines, light or dark."""

from __future__ import annotations

from html import escape
from typing import Final

from vramcast.learner.evaluation.charts import Chart, Series

_WIDTH: Final = 460  # arbitrary: the drawing's units, as the next five
_HEIGHT: Final = 300
_LEFT: Final = 66
_TOP: Final = 12
_RIGHT: Final = 14
_BOTTOM: Final = 44


def draw(chart: Chart) -> str:
    """Return the chart as one <figure> with its title and legend; names are escaped."""
    described = escape(f"{chart.title}: {chart.y.name} over {chart.x.name}; {', '.join(one.name for one in chart.series)}")
    drawing = "".join([*_axes(chart), *(_series(chart, one) for one in chart.series)])
    legend = "".join(f"<li>{_key(one)}{escape(one.name)}</li>" for one in chart.series)
    return (
        f"<figure><figcaption>{escape(chart.title)}</figcaption>"
        f'<svg class="chart" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {_TOP + _HEIGHT + _BOTTOM}" role="img" '
        f'aria-label="{described}">{drawing}</svg><ul class="legend">{legend}</ul></figure>'
    )


def _axes(chart: Chart) -> list[str]:
    bottom = _TOP + _HEIGHT
    drawn = []
    for value, label in chart.y.ticks:
        y = _y(chart, value)
        drawn.append(f'<path class="grid" d="M{_LEFT} {y}h{_WIDTH}"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">{escape(label)}</text>')
    for value, label in chart.x.ticks:
        x = _x(chart, value)
        drawn.append(f'<path class="grid" d="M{x} {_TOP}V{bottom}"/>')
        drawn.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{escape(label)}</text>')
    drawn.append(f'<text class="small" x="{_LEFT + _WIDTH / 2:g}" y="{bottom + 36}" text-anchor="middle">')
    drawn[-1] += f"{escape(chart.x.name)}</text>"
    middle = _TOP + _HEIGHT // 2
    drawn.append(f'<text class="small" transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">')
    drawn[-1] += f"{escape(chart.y.name)}</text>"
    return drawn


def _series(chart: Chart, series: Series) -> str:
    points = [(_x(chart, x), _y(chart, y)) for x, y in zip(series.x, series.y, strict=True)]
    if not points:
        return ""
    colour = series.colour
    if series.kind == "points":
        look = f'fill="none" stroke="{colour}"' if series.hollow else f'fill="{colour}" fill-opacity=".75"'
        return "".join(f'<circle cx="{x}" cy="{y}" r="3" {look}/>' for x, y in points)
    if series.kind == "band":
        back = [(_x(chart, x), _y(chart, low)) for x, low in zip(series.x[::-1], series.low[::-1], strict=True)]
        corners = " ".join(f"{x},{y}" for x, y in [*points, *back])
        # The stroke shows a band of one level, which has no width.
        return f'<polygon points="{corners}" fill="{colour}" fill-opacity=".22" stroke="{colour}" stroke-opacity=".4"/>'
    (first_x, first_y), *rest = points
    if series.kind == "steps":
        path = f"M{first_x} {_TOP + _HEIGHT}V{first_y}" + "".join(f"H{x}V{y}" for x, y in rest) + f"H{_LEFT + _WIDTH}"
    else:
        path = f"M{first_x} {first_y}" + "".join(f"L{x} {y}" for x, y in rest)
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _key(series: Series) -> str:
    colour = series.colour
    if series.kind == "points":
        mark = f'<circle cx="10" cy="6" r="4" fill="{"none" if series.hollow else colour}" stroke="{colour}"/>'
    elif series.kind == "band":
        mark = f'<rect width="20" height="12" fill="{colour}" fill-opacity=".3"/>'
    else:
        mark = f'<path d="M0 6H20" stroke="{colour}" stroke-width="2"/>'
    return f'<svg class="key" viewBox="0 0 20 12" aria-hidden="true">{mark}</svg>'


def _x(chart: Chart, value: float) -> str:
    return f"{_LEFT + _WIDTH * chart.x.place(value):.1f}".removesuffix(".0")


def _y(chart: Chart, value: float) -> str:
    return f"{_TOP + _HEIGHT * (1 - chart.y.place(value)):.1f}".removesuffix(".0")
