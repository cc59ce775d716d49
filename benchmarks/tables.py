"""Markdown tables for the pages: complete ones, or line by line if each takes a while."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_MARKS: Final = {"l": "---", "r": "---:"}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], align: str = "l") -> str:
    """Return a table; `align` as in `heading`."""
    return "\n".join([heading(columns, align), *(row(*cells) for cells in rows)])


def heading(columns: Sequence[str], align: str = "l") -> str:
    """Return the first two lines of a table.

    Args:
        columns: Names of the columns.
        align: `l` for left or `r` for right of each column from the first on; further columns are right-aligned.
    """
    marks = "|".join(_MARKS[side] for side in align.ljust(len(columns), "r"))
    return f"{row(*columns)}\n|{marks}|"


def row(*cells: object) -> str:
    """Return one line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"
