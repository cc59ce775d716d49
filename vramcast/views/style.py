"""How the views look, in one place: names, colours and letters of the categories, the scale, and names made safe to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vramcast.tracer.describe import place
from vramcast.tracer.trace import Category, Trace
from vramcast.units import GIB, MIB, gib
from vramcast.views.series import Peak, Rows, SizesBytes, Span, context_bytes, live_by_category, spans, steps


@dataclass(frozen=True, slots=True)
class Look:
    """How one category is shown: its name, its colour as #rrggbb, and its letter where there is no colour."""

    name: str
    colour: str
    letter: str


# In the order of the stack, from the bottom: what stays comes first.
# spec: the colours of Okabe and Ito, "Color Universal Design", 2008, which colour-blind readers tell apart; grey is unknown.
LOOKS: Final[Mapping[Category, Look]] = {
    Category.PARAMETER: Look("parameters", "#0072B2", "P"),
    Category.GRADIENT: Look("gradients", "#D55E00", "G"),
    Category.OPTIMIZER_STATE: Look("optimizer state", "#E69F00", "O"),
    Category.ACTIVATION: Look("activations", "#56B4E9", "A"),
    Category.INPUT: Look("inputs", "#009E73", "I"),
    Category.WORKSPACE: Look("workspaces", "#CC79A7", "W"),
    Category.TEMPORARY: Look("temporaries", "#F0E442", "T"),
    Category.UNKNOWN: Look("unknown", "#999999", "?"),
}
CONTEXT: Final = Look("context", "#606060", "x")  # arbitrary: darker than the grey of unknown; the lowest layer
PROCESS: Final = "process: context + segments"  # how the line is named
CARD_COLOUR: Final = "#C00000"  # arbitrary: none of the above; dashed, so that the colour is not needed

_HEADROOM: Final = 1.06  # arbitrary: air above the highest curve
_CARD_IN_VIEW: Final = 2.5  # arbitrary: a card which is further above the peak would flatten the curves
_MAX_TICKS: Final = 6  # arbitrary
_MAX_SPANS: Final = 500  # arbitrary: more shades than these are a few pixels wide, and slow to draw


def top_bytes(peak_bytes: int, card_bytes: int | None) -> int:
    """Return where the axis ends: above the peak, and above the card unless that lies far above; at least 1."""
    near = card_bytes is not None and card_bytes <= _CARD_IN_VIEW * peak_bytes
    return max(1, round(_HEADROOM * max(peak_bytes, card_bytes if near and card_bytes is not None else 0)))


def ticks(top: int) -> list[int]:
    """Return round sizes from 0 up to `top`: multiples of 1, 2 or 5 times a power of ten of a GiB, MiB or byte."""
    unit = next((size for size in (GIB, MIB) if top >= size), 1)
    power = 1
    while True:
        for factor in (1, 2, 5):
            step = factor * power * unit
            if top // step < _MAX_TICKS:
                return list(range(0, top + 1, step))
        power *= 10


def layers(trace: Trace, rows: Rows) -> list[tuple[Look, SizesBytes]]:
    """Return the stack right after each of `rows`, from the bottom: the context, then every category, int64 [rows] each."""
    by_category = live_by_category(trace, rows)
    return [(CONTEXT, context_bytes(trace)[rows]), *zip(LOOKS.values(), by_category, strict=True)]


def shaded_spans(trace: Trace) -> list[Span]:
    """Return the phases to shade: all, or none where they are too many to tell apart."""
    found = spans(trace)
    return found if len(found) <= _MAX_SPANS else []


def spaced_steps(trace: Trace, share: float) -> list[tuple[int, int]]:
    """Return (first row, step) of as many steps as have room for a label, which takes `share` of the time axis."""
    spaced: list[tuple[int, int]] = []
    for first, _, step in steps(trace):
        if not spaced or first - spaced[-1][0] >= share * len(trace):
            spaced.append((first, step))
    return spaced


def parts(peak: Peak) -> list[tuple[Look, int]]:
    """Return what the process holds at `peak`: the context, every category, then what is reserved and holds no block."""
    live = [(look, peak.by_category.get(category, 0)) for category, look in LOOKS.items()]
    no_block_bytes = max(peak.reserved_bytes - peak.live_bytes, 0)
    return [(CONTEXT, peak.context_bytes), *live, (Look("reserved, no block", "none", " "), no_block_bytes)]


def held_bytes(peak: Peak) -> int:
    """Return what `parts` sum to: process bytes, or context and live ones where the trace knows no segments around them."""
    return peak.context_bytes + max(peak.reserved_bytes, peak.live_bytes)


def peak_words(trace: Trace, name: str, size_bytes: int, row: int) -> str:
    """Return what a peak is and where."""
    return f"{name} peak {gib(size_bytes)} in {place(trace, row)}" if row >= 0 else f"{name} peak unknown: the trace has none"


def process_words(process: Peak) -> str:
    """Return of what the process peak is made."""
    context = f"context {gib(process.context_bytes)}" if process.context_bytes else "no context in the trace"
    return f"segments {gib(process.reserved_bytes)}, {context}"


def card_words(card_bytes: int, process: Peak) -> str:
    """Return how the card compares with the process at its peak."""
    if process.row < 0:
        return f"card {gib(card_bytes)}; the trace has no segments, so the process peak is unknown"
    left = card_bytes - process.process_bytes
    return f"card {gib(card_bytes)}: " + (f"{gib(left)} left at the process peak" if left >= 0 else f"{gib(-left)} short")
