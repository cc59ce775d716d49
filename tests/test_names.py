"""A newcomer finds a file by its name: no two of the product have the same one without a reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("vramcast", "tracer", "simulator", "learner", "datasets")
# Who comes twice, and why.
TWICE = {
    "__init__.py": "packages",
    "__main__.py": "what python -m runs: of the command line, and of Slurm's hooks",
    "devices.py": "the verb, and what it lists",
    "main.py": "where a process begins: the command line, and each portable tracer",
    "mode.py": "the dispatch mode of each portable tracer",
    "replay.py": "the verb, and what it does",
    "run.py": "the verb, and what is measured: a run",
    "serve.py": "the verb, and what keeps a tracer warm",
}


def test_no_two_files_have_one_name_without_a_reason() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if not path.parent.is_symlink()]
    assert {name for name, count in Counter(path.name for path in files).items() if count > 1} == TWICE.keys()
