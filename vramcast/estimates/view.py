"""Link from an `Estimate` to its views: text, JSON, pages, pictures.

The views are in `vramcast/report`, a higher layer, so this module does not import them. The package's root registers them
(`vramcast/__init__.py`, which Python runs before any other module of the package), so `str(estimate)` works wherever the
estimate came from. The view is loaded at its first use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.estimates.advice_rows import Advice

# Returns an object with the functions of `vramcast.report`, each of which takes an estimate.
_views: list[Callable[[], Any]] = []


def register(view: Callable[[], Any]) -> None:
    """Register a function that returns the view; it is called whenever an estimate is drawn."""
    _views[:] = [view]


class Viewable:
    """The drawing methods of an estimate."""

    __slots__ = ()

    @property
    def _view(self) -> Any:
        return _views[0]()

    def __str__(self) -> str:
        return str(self._view.text(self))

    def details(self) -> str:
        """Return everything that the seven lines of `str(estimate)` leave out.

        Returns:
            Lines of text: all peaks, parts of the margin, phases, ranks, and every warning.

        Example:
            >>> print(est.details())
            process peak ...
        """
        return str(self._view.details(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as a JSON object.

        Returns:
            A dict that follows vramcast/schema/estimate.schema.json ("schema": 1), with sizes in bytes. An unknown value is
            None, never 0.

        Example:
            >>> est.to_dict()["peaks"]["process"] == est.process
            True
        """
        found: dict[str, Any] = self._view.to_dict(self)
        return found

    def to_json(self) -> str:
        """Return the result of `to_dict` as one line of JSON.

        Returns:
            JSON text without a line break.

        Example:
            >>> est.to_json()
            '{"schema": 1, ...}'
        """
        return json.dumps(self.to_dict())

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw live and reserved bytes over time, with the size of the card.

        Args:
            path: The file to write. Its extension selects the format: .html, .png (needs matplotlib), .txt or .json.

        Raises:
            UsageError: The extension is unknown, or matplotlib is missing.
            OutputError: The file cannot be written.

        Example:
            >>> est.plot("timeline.html")
        """
        self._view.plot(self, path)

    def plot_text(self) -> str:
        """Return the timeline as text.

        Returns:
            The text that `plot` writes to a .txt file.

        Example:
            >>> print(est.plot_text())
            <BLANKLINE>
            ...
        """
        return str(self._view.plot_text(self))

    def save_report(self, path: str | os.PathLike[str], *, advice: Advice | None = None) -> None:
        """Write a report as one HTML page: the answer, the timeline, the owners of the bytes, and the assumptions.

        Args:
            path: The file to write, with the extension .html.
            advice: Result of `vramcast.advise` for this estimate, shown as a table; None for no table.

        Raises:
            UsageError: The extension is not .html.
            OutputError: The file cannot be written.

        Example:
            >>> est.save_report("report.html")
        """
        self._view.save(self, path, advice=advice)

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the answer, the card's bar, the margin and the timeline."""
        return str(self._view.draw_fragment(self))
