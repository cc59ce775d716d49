"""A job's report as a page with the answer first, its part for a notebook, and its timeline alone.

`facts.py` has its text and tables, `card_bar.py` and `module_tree.py` its drawings as numbers. The timeline comes from
`vramcast/views`. The templates are in `vramcast/views/charts/templates`: job.html, and fragment.html for a notebook.
"""

from __future__ import annotations

import os
from typing import Any, Final

from vramcast import views
from vramcast._version import __version__
from vramcast.core.text import printable
from vramcast.estimates.advice_rows import Advice
from vramcast.estimates.result import Estimate
from vramcast.report import facts
from vramcast.report.answer_json import to_dict
from vramcast.report.card_bar import card_bar
from vramcast.report.module_tree import boxes, tree_of
from vramcast.report.repeat import python_call
from vramcast.views import charts, timeline
from vramcast.views import text as text_view
from vramcast.views.charts.page import render

_TOP_GROUPS: Final = 15  # arbitrary: rows of the table of the largest blocks
_FRAGMENT_POINTS: Final = 500  # arbitrary: points of the timeline, which a notebook stores


def save(estimate: Estimate, path: str | os.PathLike[str], *, advice: Advice | None = None, command: str = "") -> None:
    """Write the report of an estimate as one page, which needs no network.

    Args:
        estimate: The estimate.
        path: A path with the extension .html.
        advice: Result of `vramcast.advise(estimate)`, for a table.
        command: The command line that repeats the estimate; "" for the Python call.
    Raises:
        UsageError: The extension is not .html.
        OutputError: The file cannot be written.
    """
    text = draw_page(estimate, advice=advice, command=command)
    charts.save(path, {ending: lambda: text for ending in views.PAGES})


def draw_page(estimate: Estimate, *, advice: Advice | None = None, command: str = "") -> str:
    """Return the report as an HTML page. For the arguments, see `save`."""
    _, row = estimate.trace.peak_live()
    return render(
        "job.html",
        **_parts(estimate),
        modules=facts.modules(estimate),
        module_boxes=boxes(tree_of(estimate.trace, row)),
        more=facts.more_tables(estimate, advice),
        repeat=command or python_call(estimate),
        made_with=facts.made_with(estimate, __version__),
        **timeline.content(estimate.trace, _card_bytes(estimate), estimate.other_rank, top_groups=_TOP_GROUPS),
    )


def draw_fragment(estimate: Estimate) -> str:
    """Return the part of the report for a notebook: no script, no ids, and styles of its own."""
    figures = timeline.figures(estimate.trace, _card_bytes(estimate), estimate.other_rank, _FRAGMENT_POINTS)
    return render("fragment.html", **_parts(estimate), figures=figures)


def _parts(estimate: Estimate) -> dict[str, Any]:
    return {
        "title": printable(estimate.title),
        "answer": facts.answer(estimate),
        "card": card_bar(to_dict(estimate)) if estimate.has_card else None,
        "margin": facts.margin(estimate),
        "peaks": facts.peaks(estimate),
        "assumed": facts.assumed(estimate),
    }


def plot(estimate: Estimate, path: str | os.PathLike[str]) -> None:
    """Draw the timeline with the card's line to `path`: .png (needs matplotlib), .html or .txt."""
    views.save(estimate.trace, path, **_options(estimate))


def plot_text(estimate: Estimate) -> str:
    """Return the text that `plot` writes to a .txt file."""
    return text_view.draw(estimate.trace, **_options(estimate))


def _options(estimate: Estimate) -> dict[str, Any]:
    return {"card_bytes": _card_bytes(estimate), "title": estimate.title, "beside": estimate.other_rank}


def _card_bytes(estimate: Estimate) -> int | None:
    return estimate.card_bytes if estimate.has_card else None
