"""Charts as SVG with a legend, for pages, with the page's light or dark colours for text and lines."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.views.charts.chart import ON_WHITE, Chart, Series
from vramcast.views.charts.page import render

if TYPE_CHECKING:
    from markupsafe import Markup

LEFT: Final = 78  # arbitrary: in the drawing's units, like the next three
_BESIDE: Final = 28  # room for half of the last label of the x axis, such as "1024 GiB"
_TOP: Final = 12
_TOP_MARKED: Final = 40  # includes room for the names of shades and marks
_WIDE: Final = 700  # arbitrary: units; a wider drawing scrolls on a small screen, others shrink
_GRID: Final = 2  # arbitrary: positions per unit; boxes that round to the same rectangle are drawn once

Floats: TypeAlias = npt.NDArray[np.float64]


def draw(chart: Chart, *, pointed: bool = False) -> Markup:
    """Return the chart as one <figure> with its title and legend.

    Args:
        chart: The chart; its names are untrusted, and escaped.
        pointed: Whether to include the ids for `pointer.js`.
    """
    from markupsafe import Markup

    top = _TOP_MARKED if chart.marks or chart.shades else _TOP
    frame = _Frame(chart, top, top + chart.height)
    shown = [one for one in chart.series if len(one.y)]
    by_name = {one.name: one for one in shown}
    axes = f"{chart.y.name} over {chart.x.name}".removeprefix(" over ")
    text = render(
        "chart.svg",
        chart=chart,
        pointed=pointed,
        is_wide=chart.width > _WIDE,
        label="; ".join(filter(None, (chart.title, axes, ", ".join(by_name), chart.description))),
        left=LEFT,
        right=LEFT + chart.width,
        beside=_BESIDE,
        top=top,
        bottom=frame.bottom,
        paint=lambda colour: f"var(--{colour})" if colour in ON_WHITE else colour,
        x=lambda value: _units(frame.x(value)),
        y=lambda value: _units(frame.y(value)),
        shapes=[(one, _shape(frame, one)) for one in shown],
        legend=by_name.values(),
    )
    return Markup(text)  # escaped by the template


@dataclass(frozen=True, slots=True)
class _Frame:
    """Coordinates of a chart's numbers in its drawing."""

    chart: Chart
    top: int
    bottom: int

    def x(self, values: npt.ArrayLike) -> Floats:
        return LEFT + self.chart.width * self.chart.x.place(values)

    def y(self, values: npt.ArrayLike) -> Floats:
        return self.bottom - self.chart.height * self.chart.y.place(values)

    def points(self, x: npt.ArrayLike, y: npt.ArrayLike) -> list[tuple[str, str]]:
        return [(_units(x), _units(y)) for x, y in zip(self.x(x).tolist(), self.y(y).tolist(), strict=True)]

    def boxes(self, series: Series) -> Floats:
        """Return x, y, width and height of each box on the grid, at least one unit of it each."""
        x, end, low, high = self.x(series.x), self.x(series.end), self.y(series.low), self.y(series.y)
        rounded: Floats = np.rint(np.stack([x, high, end - x, low - high], axis=1) * _GRID)
        rounded[:, 2:] = np.maximum(rounded[:, 2:], 1)
        return rounded / _GRID


def _units(value: float | Floats) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _shape(frame: _Frame, series: Series) -> Any:
    """Return the shape for `chart.svg`: points, boxes with titles, corners, or the path of any other kind."""
    right = LEFT + frame.chart.width
    if series.kind == "boxes":
        boxes = frame.boxes(series)
        if len(series.titles):
            return [(*(f"{n:g}" for n in box), title) for box, title in zip(boxes.tolist(), series.titles, strict=True)]
        return "".join(f"M{x:g} {y:g}h{w:g}v{h:g}h{-w:g}z" for x, y, w, h in np.unique(boxes, axis=0).tolist())
    if series.kind == "level":
        return f"M{LEFT} {_units(frame.y(series.y[0]))}H{right}"
    points = frame.points(series.x, series.y)
    if series.kind == "points":
        return points
    if series.kind == "band":
        return " ".join(f"{x},{y}" for x, y in [*points, *frame.points(series.x, series.low)[::-1]])
    (x, y), *rest = points
    if series.kind == "peak":
        return f"M{x} {y}l-5 -9h10z"
    if series.kind == "line":
        return f"M{x} {y}" + "".join(f"L{x} {y}" for x, y in rest)
    changes = "".join(f"H{x}V{y}" for (_, before), (x, y) in pairwise(points) if y != before)
    return f"M{x} {y}{changes}H{right}" + (f"V{frame.bottom}H{x}Z" if series.kind == "area" else "")
