"""Fixtures of the tests of the documents: the pages and their code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

markdown = pytest.importorskip("markdown_it", reason="markdown-it-py reads the documents (pip install --group test)")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")] + sorted((ROOT / "docs").rglob("*.md"))


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page.

    Attributes:
        line: Line of its first line of code, from 1.
        kind: First word of its info string: the language; "" for an indented block.
        reason: Reason why it is not run, from its info string: `sh not run: needs a GPU`; "" if it is run.
        file: Name from a comment `<!-- file: NAME -->` before it; "" without one.
    """

    page: Path
    line: int
    kind: str
    reason: str
    file: str
    text: str

    @property
    def is_run(self) -> bool:
        """Return whether it runs, or is a file for blocks that do."""
        return not self.reason and (self.kind in ("console", "python") or bool(self.file))

    @property
    def place(self) -> str:
        """Return page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page, without Sphinx directives."""
    before = ""
    for token in markdown.MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block") and not token.info.startswith("{"):
            kind, _, more = token.info.partition(" ")
            found = re.match(r"not run: (\S.*)", more)
            file = re.match(r"<!-- file: (\S+) -->", before)
            line = token.map[0] + (2 if token.type == "fence" else 1)
            yield Block(page, line, kind, found[1] if found else "", file[1] if file else "", token.content)
        before = token.content if token.type == "html_block" else ""


BLOCKS = {str(page.relative_to(ROOT)): list(blocks_of(page)) for page in PAGES}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of a `page` for each page, and one of a `live_page` for each page with a block that is run.

    Every commit runs the blocks of the README and the guides; a release runs those of all pages.
    """
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", BLOCKS)
    if "live_page" in metafunc.fixturenames:
        live = [page for page, found in BLOCKS.items() if any(block.is_run for block in found)]
        for_release = {page for page in live if not page.startswith(("README", "docs/guides"))}
        metafunc.parametrize(
            "live_page", [pytest.param(page, marks=pytest.mark.release) if page in for_release else page for page in live]
        )


@pytest.fixture(scope="session")
def blocks() -> dict[str, list[Block]]:
    """Return the code blocks of each page, by its path."""
    return BLOCKS
