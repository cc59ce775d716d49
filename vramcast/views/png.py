"""The view as a picture: matplotlib, drawn without a display."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Final

from vramcast.tracer.describe import shown
from vramcast.tracer.trace import Phase, Trace
from vramcast.units import gib
from vramcast.views import series, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS: Final = 6000  # arbitrary: two buckets a pixel
_SIZE_INCHES: Final = (13.0, 7.0)  # arbitrary
_DOTS_PER_INCH: Final = 110  # arbitrary: 1430 x 770 pixels
_MIN_WIDTH: Final = 0.035  # arbitrary: the share of the axis below which a span has no room for its name
_STEP_WIDTH: Final = 0.06  # arbitrary: the same between the labels of two steps
# Light greys: the colours belong to the categories.
_PHASE_GREYS: Final = {
    Phase.BUILD: "#F5F5F5",
    Phase.DATA: "#E0E0E0",
    Phase.FORWARD: "#FFFFFF",
    Phase.BACKWARD: "#ECECEC",
    Phase.OPTIMIZER: "#D8D8D8",
    Phase.OTHER: "#F5F5F5",
}


def draw(trace: Trace, *, card_bytes: int | None = None, title: str = "") -> bytes:
    """Return the view as a PNG. Args and meaning: see `vramcast.views.save`; matplotlib must be installed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure of its own, not one of pyplot's: the caller's matplotlib is left as it is.
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    live, process = series.peak_of_live(trace), series.peak_of_process(trace)
    axes = figure.add_subplot()
    _curves(axes, trace)
    top = style.top_bytes(series.highest_bytes(trace), card_bytes)
    _scales(axes, trace, top)
    said = [
        style.peak_words(trace, "live", live.live_bytes, live.row),
        style.peak_words(trace, "process", process.process_bytes, process.row),
    ]
    said += [style.process_words(process)] if process.row >= 0 else []
    if card_bytes is not None:
        said.append(style.card_words(card_bytes, process))
        if card_bytes <= top:
            axes.axhline(card_bytes, color=style.CARD_COLOUR, linestyle="--", linewidth=1.5, label="card")
        else:
            mark = f"card {gib(card_bytes)} is above ↑"
            axes.text(0.995, 0.985, mark, transform=axes.transAxes, ha="right", va="top", color=style.CARD_COLOUR)
    if live.row >= 0:
        height = live.context_bytes + live.live_bytes
        axes.plot([live.row], [height], marker="v", color="black", markersize=7, linestyle="none", label="live peak")
    handles, labels = axes.get_legend_handles_labels()
    # Upside down, so that the legend has the order of the stack.
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    heading = "\n".join([*([shown(title)] if title else []), *said])
    # Names come from anywhere: a $ in them is no formula, and a letter which the font lacks is drawn as a box.
    axes.set_title(heading, loc="left", fontsize=10, parse_math=False, pad=30)
    with warnings.catch_warnings(), io.BytesIO() as file:
        warnings.filterwarnings("ignore", message=r"Glyph \d+", category=UserWarning)
        figure.savefig(file, format="png")
        return file.getvalue()


def _curves(axes: Axes, trace: Trace) -> None:
    """Draw the context, the categories upon it, and the line of the process."""
    rows = series.sampled_rows(trace, _MAX_POINTS)
    # What a row changes holds until the next one, and what the last one leaves until the end of the trace.
    x = [*rows.tolist(), len(trace)]
    below = [0] * len(x)
    for look, sizes in style.layers(trace, rows):
        if sizes.any():
            above = [low + size for low, size in zip(below, [*sizes.tolist(), int(sizes[-1])], strict=True)]
            axes.fill_between(x, below, above, step="post", color=look.colour, linewidth=0, label=look.name)
            below = above
    if series.knows_segments(trace):
        sizes = series.process_bytes(trace)[rows]
        axes.step(x, [*sizes.tolist(), int(sizes[-1])], where="post", color="black", linewidth=1.3, label=style.PROCESS)


def _scales(axes: Axes, trace: Trace, top: int) -> None:
    """Set the scales, and mark phases as shades and steps as lines."""
    n_rows = max(len(trace), 1)
    ticks = style.ticks(top)
    axes.set_ylim(0, top)
    axes.set_yticks(ticks, [gib(size) if size else "0" for size in ticks])
    axes.set_xlim(0, n_rows)
    axes.set_xlabel("events of the allocator")
    axes.grid(axis="y", color="#BBBBBB", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    above = axes.get_xaxis_transform()
    for span in style.shaded_spans(trace):
        axes.axvspan(span.first, span.end, facecolor=_PHASE_GREYS[span.phase], linewidth=0, zorder=0)
        if (span.end - span.first) / n_rows >= _MIN_WIDTH:
            middle, name = (span.first + span.end) / 2, span.phase.name.lower()
            axes.text(middle, 1.005, name, transform=above, ha="center", va="bottom", fontsize=7, color="#555555")
    for first, step in style.spaced_steps(trace, _STEP_WIDTH):
        axes.axvline(first, color="#777777", linewidth=0.8)
        axes.text(first, 1.03, f" step {step}", transform=above, ha="left", va="bottom", fontsize=8)
