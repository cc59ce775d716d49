"""A table of a page, as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """Its heading, its columns and its rows; the first cell of a row is the row's name, the note stands below."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
