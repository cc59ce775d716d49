"""A trace to look at: the timeline by category, the peaks and what holds the bytes, one file a view.

`save` chooses by the file's ending. `simulator/curves.py` computes, `vramcast/views/charts/` draws, here is what to draw.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from vramcast.tracer.format.trace import Trace
from vramcast.views import charts, chrome_trace
from vramcast.views.style import Beside
from vramcast.views.text import draw as draw_text
from vramcast.views.timeline import draw_html, draw_png

__all__ = ["DRAWINGS", "draw_html", "draw_png", "draw_text", "save"]

DRAWINGS: Final[Mapping[str, Callable[..., str | bytes]]] = {
    ".png": draw_png,
    ".html": draw_html,
    ".txt": draw_text,
    ".json": chrome_trace.draw,
}


def save(
    trace: Trace, path: str | os.PathLike[str], *, card_bytes: int | None = None, title: str = "", beside: Beside = None
) -> None:
    """Draw `trace` and write it to `path`.

    Args:
        trace: What is drawn; one without events gives a drawing which says so. Its CONTEXT rows are the lowest layer.
        path: Ends in .png (needs matplotlib), .html (one page, nothing from the network), .txt, or .json (for ui.perfetto.dev).
        card_bytes: The card's size, drawn as a line; None: no card.
        title: What the trace is of.
        beside: Another rank of the same job, number and trace, which is drawn at the side of this one.
    Raises:
        UsageError: Another ending, or a .png without matplotlib.
        OutputError: The file cannot be written.
    """
    options = {"card_bytes": card_bytes, "title": title, "beside": beside}
    charts.save(path, {ending: partial(draw, trace, **options) for ending, draw in DRAWINGS.items()})
