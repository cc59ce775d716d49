"""The bar of a card: the job's memory at its peak, the margin of its bound, and the free rest.

    |ctx|parameters|activations ...|margin: parts|          free           |
                                   ^peak         ^bound                    ^card

If the bound exceeds the card, the axis ends at the bound, and the end of the card is inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.units import gib
from vramcast.tracer.format.trace import Category
from vramcast.views.style import CONTEXT, FRAGMENTATION, LOOKS, OTHERS, Look

MARGIN: Final = "margin"  # a colour of the page
# The names of `Estimate.breakdown`, in the order of the stack.
PARTS: Final[dict[str, Look]] = {
    "context": CONTEXT,
    "other_processes": OTHERS,
    "parameters": LOOKS[Category.PARAMETER],
    "gradients": LOOKS[Category.GRADIENT],
    "optimizer_state": LOOKS[Category.OPTIMIZER_STATE],
    "kv_cache": LOOKS[Category.KV_CACHE],
    "activations": LOOKS[Category.ACTIVATION],
    "inputs": LOOKS[Category.INPUT],
    "workspaces": LOOKS[Category.WORKSPACE],
    "temporaries": LOOKS[Category.TEMPORARY],
    "fragmentation": FRAGMENTATION,
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """One part of the bar: its look, its bytes, and its position in shares of the axis."""

    look: Look
    size_bytes: int
    start: float
    share: float

    @property
    def words(self) -> str:
        """Name and size of the part."""
        return f"{self.look.name} {gib(self.size_bytes)}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A labelled position on the axis, as a share of it."""

    words: str
    at: float

    @property
    def anchor(self) -> str:
        """The end of the label at the position, so that the label stays inside of the drawing."""
        return "end" if self.at > 0.5 else "start"


@dataclass(frozen=True, slots=True)
class CardBar:
    """The bar of a card.

    Attributes:
        held: Memory of the process at its peak by part, from the start of the axis.
        margin: Parts of the margin from there to the bound; empty if no bound holds.
        peak, bound, card: Positions; bound is None if no bound holds.
        is_over: Whether the peak or the bound exceeds the card.
    """

    held: tuple[Stretch, ...]
    margin: tuple[Stretch, ...]
    peak: Mark
    bound: Mark | None
    card: Mark
    is_over: bool

    @property
    def words(self) -> str:
        """The bar as one sentence, for screen readers."""
        bound = f"; {self.bound.words}" if self.bound is not None else ""
        return f"{self.peak.words}: {', '.join(one.words for one in self.held)}{bound}; {self.card.words}"


def card_bar(found: Mapping[str, Any]) -> CardBar:
    """Return the bar of an estimate's card, from the estimate's JSON object."""
    point_bytes, card_bytes = found["peaks"]["process"], found["memory_bytes"]
    claimed = found["upper_bound"]
    bound_bytes = None if found["doubts"] else claimed["bytes"]
    end_bytes = max(point_bytes, bound_bytes or 0, card_bytes, 1)
    held = [(look, found["breakdown"].get(name, 0)) for name, look in PARTS.items()]
    margin, bound = [], None
    if bound_bytes is not None:
        bound = Mark(f"upper bound {gib(bound_bytes)}", bound_bytes / end_bytes)
        margin = [(Look(f"margin: {part['part']}", MARGIN, " "), part["size_bytes"]) for part in claimed["margin"]]
    return CardBar(
        tuple(_stretches(held, 0, end_bytes)),
        tuple(_stretches(margin, point_bytes, end_bytes)),
        Mark(f"peak {gib(point_bytes)}", point_bytes / end_bytes),
        bound,
        Mark(f"card {gib(card_bytes)}", card_bytes / end_bytes),
        is_over=max(point_bytes, bound_bytes or 0) > card_bytes,
    )


def _stretches(parts: Iterable[tuple[Look, int]], start_bytes: int, end_bytes: int) -> Iterator[Stretch]:
    """Yield consecutive parts from a position of the axis on; none exceeds its end."""
    for look, size_bytes in parts:
        if size_bytes > 0:
            start = min(start_bytes / end_bytes, 1.0)
            yield Stretch(look, size_bytes, start, min(size_bytes / end_bytes, 1.0 - start))
            start_bytes += size_bytes
