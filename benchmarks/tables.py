"""Markdown tables, as the pages show them: whole ones, or a line at a time where each takes a while."""

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
        columns: What they are called.
        align: `l` for left or `r` for right of each column from the first on; those behind its end are right-aligned.
    """
    marks = "|".join(_MARKS[side] for side in align.ljust(len(columns), "r"))
    return f"{row(*columns)}\n|{marks}|"


def row(*cells: object) -> str:
    """Return one line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"
