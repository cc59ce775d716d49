"""The timeline of an estimate, drawn to a file or as text."""

from __future__ import annotations

import os
from typing import Any

from vramcast.estimates.result import Estimate
from vramcast.views import draw_text, save


def plot(estimate: Estimate, path: str | os.PathLike[str]) -> None:
    """Draw the timeline with the card's line to `path`: .png (needs matplotlib), .html or .txt."""
    save(estimate.trace, path, **_options(estimate))


def plot_text(estimate: Estimate) -> str:
    """Return what `plot` writes to a .txt."""
    return draw_text(estimate.trace, **_options(estimate))


def _options(estimate: Estimate) -> dict[str, Any]:
    """Return what a view needs to know besides the trace."""
    return {"card_bytes": estimate.card_bytes, "title": estimate.title, "beside": estimate.other_rank}
