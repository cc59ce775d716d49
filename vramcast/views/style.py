"""The style of all views: names, colours and letters of the categories, the axes, and descriptions of peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from vramcast.core.units import GIB, MIB, gib
from vramcast.simulator.curves import (
    Peak,
    Rows,
    RowSpan,
    SizesBytes,
    context_bytes,
    live_by_category,
    peak_of_live,
    peak_of_process,
    spans,
    steps,
)
from vramcast.tracer.format.rank_facts import beside_bytes
from vramcast.tracer.format.trace import RANKS, Category, Trace, place
from vramcast.views.charts import chart
from vramcast.views.charts.chart import Axis


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a category: its name, its colour as #rrggbb, and its letter for views without colour."""

    name: str
    colour: str
    letter: str


# In the order of the stack, from the bottom: long-lived categories first.
LOOKS: Final[Mapping[Category, Look]] = {
    Category.PARAMETER: Look("parameters", chart.BLUE, "P"),
    Category.GRADIENT: Look("gradients", chart.VERMILION, "G"),
    Category.OPTIMIZER_STATE: Look("optimizer state", chart.ORANGE, "O"),
    Category.ACTIVATION: Look("activations", chart.SKY_BLUE, "A"),
    Category.INPUT: Look("inputs", chart.GREEN, "I"),
    Category.WORKSPACE: Look("workspaces", chart.PURPLE, "W"),
    Category.TEMPORARY: Look("temporaries", chart.YELLOW, "T"),
    Category.UNKNOWN: Look("unknown", chart.GREY, "?"),
    Category.KV_CACHE: Look("KV cache", chart.TEAL, "K"),
}
CONTEXT: Final = Look("context", chart.DARK_GREY, "x")  # the lowest layer
OTHERS: Final = Look("other processes", chart.GREY, "o")
FRAGMENTATION: Final = Look("fragmentation", chart.GREY, " ")
PROCESS: Final = "process: context + segments"  # name of the line

_HEADROOM: Final = 1.06  # arbitrary: space above the highest curve
_CARD_IN_VIEW: Final = 2.5  # arbitrary: a card further above the peak would flatten the curves
_MAX_SPANS: Final = 500  # arbitrary: more shades would be only a few pixels wide, and slow to draw


Beside: TypeAlias = tuple[int, Trace] | None


def ranks(trace: Trace, beside: Beside) -> list[tuple[str, Trace]]:
    """Return (name, trace) of the ranks to draw side by side; a single trace has no name, and an empty one is left out."""
    if beside is None or not len(beside[1]):
        return [("", trace)]
    of = trace.header.get(RANKS, {})
    own, size = of.get("fullest", ""), of.get("world_size", "")
    return [(f"rank {own} of {size}, which reserves most", trace), (f"rank {beside[0]}", beside[1])]


def top_bytes(peak_bytes: int, card_bytes: int | None) -> int:
    """Return the end of the axis, at least 1: above the peak, and above the card unless that is far higher."""
    near = card_bytes is not None and card_bytes <= _CARD_IN_VIEW * peak_bytes
    return max(1, round(_HEADROOM * max(peak_bytes, card_bytes if near and card_bytes is not None else 0)))


def ticks(top: int) -> list[int]:
    """Return round sizes from 0 up to `top`: multiples of 1, 2 or 5 times a power of ten of a GiB, MiB or byte."""
    return chart.ticks(top, next((size for size in (GIB, MIB) if top >= size), 1))


def byte_axis(top: int) -> Axis:
    """Return the axis of bytes from 0 to `top`."""
    return Axis("", 0, top, tuple((size, gib(size) if size else "0") for size in ticks(top)))


def event_axis(trace: Trace) -> Axis:
    """Return the axis of the rows of a trace."""
    return Axis("events of the allocator", 0, max(len(trace), 1), tuple((row, f"{row:,}") for row in chart.ticks(len(trace))))


def layers(trace: Trace, rows: Rows) -> list[tuple[Look, SizesBytes]]:
    """Return the stack right after each of `rows`, from the bottom: the context, then every category, int64 [rows] each."""
    by_category = live_by_category(trace, rows)
    return [(CONTEXT, context_bytes(trace)[rows]), *zip(LOOKS.values(), by_category, strict=True)]


def shaded_spans(trace: Trace) -> list[RowSpan]:
    """Return the phases to shade: all, or none if there are too many to distinguish."""
    found = spans(trace)
    return found if len(found) <= _MAX_SPANS else []


def spaced_steps(trace: Trace, share: float) -> list[tuple[int, int]]:
    """Return (first row, step) of the steps to label, if each label takes `share` of the time axis."""
    spaced: list[tuple[int, int]] = []
    for first, _, step in steps(trace):
        if not spaced or first - spaced[-1][0] >= share * len(trace):
            spaced.append((first, step))
    return spaced


def parts(trace: Trace) -> list[tuple[Look, int]]:
    """Return the process peak by part, as `Estimate.breakdown`: the blocks are those of the allocated peak.

    Fragmentation is the rest: segments that hold no block even then. Parts of 0 bytes are left out.
    """
    live, process = peak_of_live(trace), peak_of_process(trace)
    blocks = dict(live.by_category)
    blocks[Category.TEMPORARY] = blocks.get(Category.TEMPORARY, 0) + blocks.pop(Category.UNKNOWN, 0)
    others_bytes = beside_bytes(trace)
    at = process if process.row >= 0 else live
    found = [
        (CONTEXT, at.context_bytes - others_bytes),
        (OTHERS, others_bytes),
        *((look, blocks.get(category, 0)) for category, look in LOOKS.items()),
        (FRAGMENTATION, max(process.reserved_bytes - live.live_bytes, 0)),
    ]
    return [(look, size_bytes) for look, size_bytes in found if size_bytes]


def shares(trace: Trace) -> list[tuple[Look, int, float]]:
    """Return `parts`, each with its share of their sum."""
    found = parts(trace)
    all_bytes = max(sum(size_bytes for _, size_bytes in found), 1)
    return [(look, size_bytes, max(0.0, size_bytes / all_bytes)) for look, size_bytes in found]


def peak_words(trace: Trace, name: str, size_bytes: int, row: int) -> str:
    """Return a description of a peak and its position."""
    return f"{name} peak {gib(size_bytes)} in {place(trace, row)}" if row >= 0 else f"{name} peak unknown: the trace has none"


def process_words(process: Peak) -> str:
    """Return the parts of the process peak."""
    context = f"context {gib(process.context_bytes)}" if process.context_bytes else "no context in the trace"
    return f"segments {gib(process.reserved_bytes)}, {context}"


def card_words(card_bytes: int, process: Peak) -> str:
    """Return a comparison of the card with the process peak."""
    if process.row < 0:
        return f"card {gib(card_bytes)}; the trace has no segments, so the process peak is unknown"
    left = card_bytes - process.process_bytes
    return f"card {gib(card_bytes)}: " + (f"{gib(left)} left at the process peak" if left >= 0 else f"{gib(-left)} short")
