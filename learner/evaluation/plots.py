"""The charts as pictures: matplotlib, drawn without a display. It is optional: pip install 'vramcast[plot]'."""

from __future__ import annotations

import importlib.util
import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vramcast.errors import UsageError
from vramcast.files import atomic_write
from vramcast.learner.evaluation.charts import CHARTS, Chart, Series
from vramcast.learner.evaluation.scored import Scored

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE_INCHES: Final = (7.0, 5.0)  # arbitrary
_DOTS_PER_INCH: Final = 120  # arbitrary


def save_plots(scored: Sequence[Scored], folder: str | os.PathLike[str]) -> list[Path]:
    """Draw all charts of `scored` into `folder` and return the files: parity.png, coverage.png, errors.png, ...

    Raises:
        UsageError: matplotlib is not installed.
        OutputError: a file cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"Plots in '{folder}' need matplotlib: pip install 'vramcast[plot]', or write the HTML report.")
    paths = []
    for name, chart in CHARTS.items():
        data = draw(chart(scored))
        paths.append(Path(folder) / f"{name}.png")
        with atomic_write(paths[-1]) as file:
            file.write(data)
    return paths


def draw(chart: Chart) -> bytes:
    """Return the chart as a PNG; matplotlib must be installed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure of its own, not one of pyplot's: the caller's matplotlib is left as it is.
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _scales(axes, chart)
    for series in chart.series:
        _series(axes, series)
    axes.set_title(chart.title, loc="left", fontsize=11)
    if chart.series:
        legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=8)
        for text in legend.get_texts():
            text.set_parse_math(False)  # names come from anywhere: a $ in them is no formula
    with warnings.catch_warnings(), io.BytesIO() as file:
        warnings.filterwarnings("ignore", message=r"Glyph \d+", category=UserWarning)
        figure.savefig(file, format="png")
        return file.getvalue()


def _scales(axes: Axes, chart: Chart) -> None:
    if chart.x.is_log:
        axes.set_xscale("log")
    if chart.y.is_log:
        axes.set_yscale("log")
    axes.set_xticks([at for at, _ in chart.x.ticks], [label for _, label in chart.x.ticks])
    axes.set_yticks([at for at, _ in chart.y.ticks], [label for _, label in chart.y.ticks])
    axes.minorticks_off()
    axes.set_xlim(chart.x.low, chart.x.high)
    axes.set_ylim(chart.y.low, chart.y.high)
    axes.set_xlabel(chart.x.name)
    axes.set_ylabel(chart.y.name)
    axes.grid(color="#DDDDDD", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _series(axes: Axes, series: Series) -> None:
    x, y, colour, name = series.x, series.y, series.colour, series.name
    if series.kind == "band":
        axes.fill_between(x, series.low, y, color=colour, alpha=0.25, linewidth=0, label=name)
    elif series.kind == "points":
        face = "none" if series.hollow else colour
        axes.plot(x, y, linestyle="none", marker="o", markersize=4, color=colour, markerfacecolor=face, label=name)
    elif series.kind == "steps":
        axes.step(x, y, where="post", color=colour, linewidth=1.4, label=name)
    else:
        axes.plot(x, y, color=colour, linewidth=1.2, label=name)
