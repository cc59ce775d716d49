"""The layout of the code: few enough files in a folder to be read at a glance."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_FILES = 25  # arbitrary: a folder of this size can be read at a glance
TOPS = ("vramcast", "tracer", "simulator", "learner", "datasets", "models", "benchmarks", "tests", "notebooks", "contrib")
LEFT_BY_PYTHON = "__pycache__"


@pytest.mark.parametrize("top", TOPS)
def test_no_folder_has_too_many_files(top: str) -> None:
    folders = [ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir() and path.name != LEFT_BY_PYTHON)]
    crowded = {folder: n for folder in folders if (n := sum(path.is_file() for path in folder.iterdir())) > MOST_FILES}
    assert crowded == {}


def test_package_has_only_three_modules() -> None:
    assert {path.name for path in (ROOT / "vramcast").glob("*.py")} == {"__init__.py", "__main__.py", "_version.py"}
