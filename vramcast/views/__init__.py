"""A trace to look at: the timeline by category, the peaks and what holds the bytes, one file a view.

`save` chooses by the file's ending. `simulator/curves.py` computes, `vramcast/views/charts/` draws, here is what to draw.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from vramcast.views import charts

if TYPE_CHECKING:
    from vramcast.tracer.format.trace import Trace
    from vramcast.views.style import Beside

__all__ = ["DRAWINGS", "PAGES", "save"]

PAGES: Final = (".html", ".htm")  # endings of a page

# Ending -> module and function that draw it, imported when something is drawn: the command line only wants the endings.
DRAWINGS: Final[Mapping[str, tuple[str, str]]] = {
    ".png": ("vramcast.views.timeline", "draw_png"),
    ".html": ("vramcast.views.timeline", "draw_html"),
    ".txt": ("vramcast.views.text", "draw"),
    ".json": ("vramcast.views.chrome_trace", "draw"),
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

    def draw(ending: str) -> str | bytes:
        module, function = DRAWINGS[ending]
        drawn: str | bytes = getattr(importlib.import_module(module), function)(trace, **options)
        return drawn

    charts.save(path, {ending: partial(draw, ending) for ending in DRAWINGS})
