"""Views of a trace: the timeline by category, the peaks and the owners of the bytes, one file per view.

`save` selects the view by the file's extension. `simulator/curves.py` computes the curves, and `vramcast/views/charts/` draws
them.
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

PAGES: Final = (".html", ".htm")  # extensions of a page

# By extension, the module and the function of a view, imported on use: the command line needs only the extensions.
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
        trace: The trace. Its CONTEXT rows are the lowest layer; without events, the drawing states that there are none.
        path: A path with the extension .png (needs matplotlib), .html (one page, no network), .txt, or .json (for
            ui.perfetto.dev).
        card_bytes: The card's size, drawn as a line; None: no card.
        title: The job's name.
        beside: Number and trace of another rank of the same job, drawn next to this one.
    Raises:
        UsageError: The extension is unknown, or matplotlib is missing.
        OutputError: The file cannot be written.
    """
    options = {"card_bytes": card_bytes, "title": title, "beside": beside}

    def draw(ending: str) -> str | bytes:
        module, function = DRAWINGS[ending]
        drawn: str | bytes = getattr(importlib.import_module(module), function)(trace, **options)
        return drawn

    charts.save(path, {ending: partial(draw, ending) for ending in DRAWINGS})
