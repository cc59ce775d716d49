"""Charts as PNG by matplotlib, without a display. It is optional: pip install '.[plot]'."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vramcast.views.charts.chart import ON_WHITE, Chart, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES: Final = (13.0, 7.0)  # arbitrary
_DOTS_PER_INCH: Final = 110  # arbitrary
_EDGED_SHARE: Final = 0.004  # arbitrary: share of both axes; smaller boxes have no room for an edge


def draw(charts: Sequence[Chart], heading: str = "") -> bytes:
    """Return charts with the same y axis side by side as a PNG; matplotlib must be installed.

    Args:
        charts: At least one chart; its names are untrusted.
        heading: Lines above the charts.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with warnings.catch_warnings(), rc_context({"text.parse_math": False}), io.BytesIO() as file:
        # Names are untrusted: a $ does not start a formula, and a letter missing in the font is drawn as a box.
        warnings.filterwarnings("ignore", message=r"Glyph \d+", category=UserWarning)
        # Not a figure of pyplot, so that the caller's matplotlib is not changed.
        figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(figure)
        entries: dict[str, Any] = {}
        for axes, chart in zip(figure.subplots(1, len(charts), sharey=True, squeeze=False)[0], charts, strict=True):
            _scales(axes, chart)
            for series in chart.series:
                if len(series.y):
                    _series(axes, chart, series)
            handles, names = axes.get_legend_handles_labels()
            entries |= dict(zip(names, handles, strict=True))
        figure.legend(list(entries.values()), list(entries), frameon=False, loc="outside right center")
        if heading:
            figure.suptitle(heading, x=0.01, ha="left", fontsize=10)
        figure.savefig(file, format="png")
        return file.getvalue()


def _scales(axes: Axes, chart: Chart) -> None:
    """Set scales and title, and draw the background."""
    axes.set_xscale("log" if chart.x.is_log else "linear")
    axes.set_yscale("log" if chart.y.is_log else "linear")
    axes.set_xticks([at for at, _ in chart.x.ticks], [label for _, label in chart.x.ticks])
    axes.set_yticks([at for at, _ in chart.y.ticks], [label for _, label in chart.y.ticks])
    axes.minorticks_off()
    axes.set_xlim(chart.x.low, chart.x.high)
    axes.set_ylim(chart.y.low, chart.y.high)
    axes.set_xlabel(chart.x.name)
    axes.set_ylabel(chart.y.name)
    axes.set_title(chart.title, loc="left", fontsize=10, pad=30 if chart.marks else None)
    axes.grid(axis="y", color="#BBBBBB", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    above = axes.get_xaxis_transform()
    for shade in chart.shades:
        axes.axvspan(shade.first, shade.end, facecolor="black", alpha=shade.weight, linewidth=0, zorder=0)
        middle = (shade.first + shade.end) / 2
        axes.text(middle, 1.005, shade.name, transform=above, ha="center", va="bottom", fontsize=7, color="#555555")
    for at, label in chart.marks:
        axes.axvline(at, color="#777777", linewidth=0.8)
        axes.text(at, 1.03, f" {label}", transform=above, ha="left", va="bottom", fontsize=8)
    axes.text(0.995, 0.985, chart.note, transform=axes.transAxes, ha="right", va="top", color=ON_WHITE["alarm"])


def _series(axes: Axes, chart: Chart, series: Series) -> None:
    x, y, name = series.x, series.y, series.name
    colour = ON_WHITE.get(series.colour, series.colour)
    if series.kind in ("steps", "area"):
        x, y = [*x, chart.x.high], [*y, y[-1]]
    if series.kind == "band":
        axes.fill_between(x, series.low, y, color=colour, alpha=0.25, linewidth=0, label=name)
    elif series.kind == "area":
        axes.fill_between(x, y, step="post", color=colour, linewidth=0, label=name)
    elif series.kind == "points":
        face = "none" if series.hollow else colour
        axes.plot(x, y, linestyle="none", marker="o", markersize=4, color=colour, markerfacecolor=face, label=name)
    elif series.kind == "peak":
        axes.plot(x, y, linestyle="none", marker="v", markersize=7, color=colour, label=name)
    elif series.kind == "steps":
        axes.step(x, y, where="post", color=colour, linewidth=1.3, label=name)
    elif series.kind == "level":
        axes.axhline(y[0], color=colour, linestyle="--", linewidth=1.5, label=name)
    elif series.kind == "boxes":
        _boxes(axes, chart, series, colour)
    else:
        axes.plot(x, y, color=colour, linewidth=1.2, label=name)


def _boxes(axes: Axes, chart: Chart, series: Series, colour: str) -> None:
    from matplotlib.collections import PolyCollection

    first, end, low, high = (np.asarray(values) for values in (series.x, series.end, series.low, series.y))
    corners: Any = np.stack([np.stack([first, end, end, first], 1), np.stack([low, low, high, high], 1)], axis=2)
    has_edge = (high - low >= _EDGED_SHARE * chart.y.high) & (end - first >= _EDGED_SHARE * chart.x.high) & bool(series.titles)
    widths = np.where(has_edge, 0.3, 0)
    boxes = PolyCollection(corners, facecolors=colour, edgecolors="white", linewidths=widths, label=series.name)
    axes.add_collection(boxes, autolim=False)
