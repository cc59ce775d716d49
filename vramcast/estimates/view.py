"""The door through which an answer is drawn.

An `Estimate` is data, and what draws it (text, JSON, pages, pictures) stands above it, in `vramcast/report`: nothing here
imports that. The package's root does, `vramcast/__init__.py`, which Python runs before any other module of the package: it
registers the view. So `str(estimate)` works however a program came by its estimate, and loads the view at its first use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.estimates.advice_rows import Advice

# Returns what draws an estimate: it has functions named as `vramcast.report` has them, each of an estimate.
_views: list[Callable[[], Any]] = []


def register(view: Callable[[], Any]) -> None:
    """Let `view()` draw all estimates from now on; it is called when one is drawn."""
    _views[:] = [view]


class Viewable:
    """What an estimate shows of itself."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        return _views[0]()

    def __str__(self) -> str:
        return str(self._view.text(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as the JSON object of the contract ("schema": 1); unknown is None, never 0."""
        found: dict[str, Any] = self._view.to_dict(self)
        return found

    def to_json(self) -> str:
        """Return `to_dict` as one line of JSON."""
        return json.dumps(self.to_dict())

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the timeline with the card's line.

        Args:
            path: Its ending chooses the view, as for `vramcast estimate --plot`; a .png needs matplotlib.
        Raises:
            UsageError: Another ending, or a .png without matplotlib.
            OutputError: The file cannot be written.
        """
        self._view.plot(self, path)

    def plot_text(self) -> str:
        """Return what `plot` writes to a .txt."""
        return str(self._view.plot_text(self))

    def save_report(self, path: str | os.PathLike[str], *, advice: Advice | None = None) -> None:
        """Write the report, one HTML page: the answer, the timeline, who holds the bytes, what was assumed.

        Args:
            path: Ends in .html.
            advice: What `vramcast.advise` gave for this estimate, for its table.
        Raises:
            UsageError: Another ending.
            OutputError: The file cannot be written.
        """
        self._view.save(self, path, advice=advice)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the answer, the bar of the card, the margin and the timeline."""
        return str(self._view.draw_fragment(self))
