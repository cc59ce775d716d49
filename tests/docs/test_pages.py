"""Tests of the pages: links have targets, tables agree with the code. Of outside links only the form is checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

import vramcast
from vramcast.core import errors

markdown = pytest.importorskip("markdown_it", reason="markdown-it-py reads the documents (pip install --group test)")

ROOT = Path(__file__).parents[2]
OTHERS = {"docs/float8.md"}  # torchtitan's own
GENERATED = {"docs/reference/cli.md"}  # its anchors are `vramcast-VERB` and `vramcast-VERB---OPTION`


def links_of(text: str) -> Iterator[str]:
    """Yield the targets of a page's links and pictures."""
    for token in markdown.MarkdownIt("commonmark").enable("table").parse(text):
        for part in token.children or ():
            if part.type in ("link_open", "image"):
                yield str(part.attrs.get("href") or part.attrs.get("src"))


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings, as MyST and GitHub make them."""
    tokens = markdown.MarkdownIt("commonmark").enable("table").parse(text)
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower().strip()).replace(" ", "-") for title in titles}


def problem(link: str, page: Path) -> str:
    """Return the reason why a link of a page has no target; "" if it has one."""
    parts = urlsplit(link)
    if parts.scheme:
        return "" if parts.scheme in ("https", "mailto") and (parts.netloc or parts.scheme == "mailto") else "no https address"
    target = (page.parent / parts.path).resolve() if parts.path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return "no such file"
    if parts.fragment and target.suffix == ".md" and str(target.relative_to(ROOT)) not in GENERATED:
        return "" if parts.fragment in anchors_of(target.read_text(encoding="utf-8")) else "no such heading"
    return ""


def test_every_link_has_a_target(page: str) -> None:
    path = ROOT / page
    found = {link: problem(link, path) for link in links_of(path.read_text(encoding="utf-8"))}
    assert {link: why for link, why in found.items() if why} == {}


def test_every_page_named_in_pages_exists(page: str) -> None:
    """Check paths in the text that are not links; the test above checks links."""
    named = set(re.findall(r"(?<![\w/])docs/[\w/-]+\.md\b", (ROOT / page).read_text(encoding="utf-8")))
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_every_page_named_in_code_exists() -> None:
    folders = ("vramcast", "tracer", "simulator", "learner", "datasets", "benchmarks", "contrib", "tests")
    named = {
        (name, str(path.relative_to(ROOT)))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"(?<![/\w])docs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert sorted(pair for pair in named if not (ROOT / pair[0]).is_file() and pair[0] not in OTHERS) == []
    assert len(named) > 20


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("nowhere.md", "no such file"), ("commands.md#nothing", "no such heading"), ("../../outside.md", "no such file"),
        ("http://plain.example", "no https address"), ("https:///path", "no https address"),
        ("commands.md#time-and-main-memory", ""), ("https://pytorch.org/memory_viz", ""), ("#limits", ""),
    ],
)  # fmt: skip
def test_finds_wrong_link(link: str, why: str) -> None:
    assert problem(link, ROOT / "docs" / "planning.md") == why


def test_environment_table_equals_code() -> None:
    """Compare the tables; internal variables, which processes of ours set for each other, are left out."""
    folders = ("vramcast", "tracer", "simulator", "learner", "datasets")
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")]
    read = {name for text in texts for name in re.findall(r"\"(VRAMCAST_[A-Z_]+)\"", text)} - {
        "VRAMCAST_SUBPROCESSES",
        "VRAMCAST_FOLLOW",
    }
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(VRAMCAST_\w+)`", page, re.MULTILINE)) == read


def test_exit_code_table_covers_all_errors() -> None:
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.VramcastError)]
    assert {kind.exit_code for kind in kinds} <= codes
    assert codes == {0, 1, 2, 3, 4, 130}


def test_extras_named_in_pages_exist(page: str) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"\.\[(\w+)\]", (ROOT / page).read_text(encoding="utf-8"))) <= known.keys()


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))],
    ids=lambda path: path.name,
)
def test_documents_import_only_public_modules(path: Path) -> None:
    modules = set(re.findall(r"(?:from|import) (vramcast(?:\.\w+)*)", path.read_text(encoding="utf-8")))
    public = {"vramcast", *(f"vramcast.{name}" for name in vramcast.__all__ if isinstance(getattr(vramcast, name), ModuleType))}
    apart = ("vramcast.integrations", "vramcast.runtime", "vramcast.cluster")  # imported only where they are used
    assert {module for module in modules - public if not module.startswith(apart)} == set()


def test_install_lines_work_today() -> None:
    """No package of this name is published, and another author could register it."""
    text = [path for folder in ("docs", "vramcast", "learner", "datasets", "contrib") for path in (ROOT / folder).rglob("*.*")]
    pages = [path for path in [ROOT / "README.md", *text] if path.suffix in (".md", ".py", ".sh", ".yml", ".yaml", ".ipynb")]
    found = [path for path in pages if re.search(r"pip install (?:--[\w-]+ )*['\"]?vramcast", path.read_text(encoding="utf-8"))]
    assert found == []
