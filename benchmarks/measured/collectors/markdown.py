"""Tables in Markdown, as messages of commits and documentation have them."""

from __future__ import annotations

from collections.abc import Iterator


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield each table as its rows of cells, the header first and without the line below it."""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        if stripped.startswith("|") and stripped.endswith("|"):
            cells = [cell.strip() for cell in stripped.strip("|").split("|")]
            if set("".join(cells)) - set(":- "):
                rows.append(cells)
        elif rows:
            yield rows
            rows = []
