"""Batch scripts of a grammar: where the reader understands one, Bash trains nothing larger."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.hostile.batch_scripts import drawn
from benchmarks.hostile.cluster.batch_scripts import RIGHT, WRONG, compared

pytest.importorskip("tree_sitter_bash")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("bash", path="/bin") is None, reason="needs /bin/bash"),
]


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.release)])
def test_understood_scripts_train_as_under_bash(count: int, tmp_path: Path) -> None:
    found = compared(drawn(count), tmp_path)
    assert [(script, why) for script, outcome, why in found if outcome == WRONG] == []
    assert sum(outcome == RIGHT for _, outcome, _ in found) > count // 4
