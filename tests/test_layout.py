"""The layout of code and documents: folders to be read at a glance, and pages to be read at all."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks.layout import BUDGETS, PRODUCT, by_part, files

ROOT = Path(__file__).parents[1]
MOST_FILES = 25  # arbitrary: a folder of this size can be read at a glance
TOPS = ("vramcast", "tracer", "simulator", "learner", "datasets", "models", "benchmarks", "tests", "notebooks", "contrib")
LEFT_BY_PYTHON = "__pycache__"
MOST_WORDS = 46_200  # arbitrary: of all pages; version 0.2.0 had 70,391
MOST_WORDS_OF_A_PAGE = 4_000  # arbitrary: some twenty minutes of reading
MOST_LINES = {"ARCHITECTURE.md": 120, "CHANGELOG.md": 200}  # arbitrary


@pytest.mark.parametrize("top", TOPS)
def test_no_folder_has_too_many_files(top: str) -> None:
    folders = [ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir() and path.name != LEFT_BY_PYTHON)]
    crowded = {folder: n for folder in folders if (n := sum(path.is_file() for path in folder.iterdir())) > MOST_FILES}
    assert crowded == {}


def test_package_has_only_three_modules() -> None:
    assert {path.name for path in (ROOT / "vramcast").glob("*.py")} == {"__init__.py", "__main__.py", "_version.py"}


def test_pages_stay_short() -> None:
    words = {path: len(path.read_text(encoding="utf-8").split()) for path in (ROOT / "docs").rglob("*.md")}
    assert {page: n for page, n in words.items() if n > MOST_WORDS_OF_A_PAGE} == {}
    assert sum(words.values()) <= MOST_WORDS


@pytest.mark.parametrize("page", MOST_LINES)
def test_page_has_few_lines(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= MOST_LINES[page]


@pytest.mark.integration
def test_each_part_stays_within_its_budget() -> None:
    sizes = by_part(files())
    left = {part: most - sizes[part][0] for part, most in BUDGETS.items()}
    print(f"lines left: {left}")
    assert {part: n for part, n in left.items() if n < 0} == {}


def test_public_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path in (path for part in PRODUCT for path in (ROOT / part).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
