"""A trace to look at: the timeline by category, the peaks and what holds the bytes, as .png, .html or .txt.

`save` chooses by the file's ending. `series` computes, without matplotlib or torch; `text`, `png` and `html` draw.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from vramcast.errors import UsageError
from vramcast.files import atomic_write
from vramcast.tracer.trace import Trace
from vramcast.views.html import draw as draw_html
from vramcast.views.text import draw as draw_text

__all__ = ["check_path", "draw_html", "draw_text", "save"]


def check_path(path: str | os.PathLike[str]) -> None:
    """Raise UsageError unless `save` can draw to `path`: its ending is known, and matplotlib is there for a .png."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".html", ".txt"):
        raise UsageError(f"View '{path}' ends in '{suffix}', expected .png, .html or .txt: choose one of them.")
    if suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"View '{path}' needs matplotlib: pip install 'vramcast[plot]', or choose .html or .txt.")


def save(trace: Trace, path: str | os.PathLike[str], *, card_bytes: int | None = None, title: str = "") -> None:
    """Draw `trace` and write it to `path`.

    Args:
        trace: What is drawn; one without events gives a drawing which says so. Its CONTEXT rows are the lowest layer.
        path: Ends in .png (needs matplotlib), .html (one page, nothing from the network) or .txt.
        card_bytes: The card's size, drawn as a line; None: no card.
        title: What the trace is of.
    Raises:
        UsageError: Another ending, or a .png without matplotlib.
        OutputError: The file cannot be written.
    """
    check_path(path)
    suffix = Path(path).suffix.lower()
    if suffix == ".png":
        from vramcast.views.png import draw as draw_png  # matplotlib is optional, and slow to import

        data = draw_png(trace, card_bytes=card_bytes, title=title)
    elif suffix == ".html":
        data = draw_html(trace, card_bytes=card_bytes, title=title).encode()
    else:
        data = draw_text(trace, card_bytes=card_bytes, title=title).encode()
    with atomic_write(path) as file:
        file.write(data)
