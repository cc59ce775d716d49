"""Tests of `benchmarks.speed.adoption` at a small size: a killed adoption loses nothing and ends with the same bytes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("xgboost")

from benchmarks.speed import adoption


@pytest.mark.release
@pytest.mark.integration
def test_keeps_artifact_of_killed_adoptions(tmp_path: Path, needs_null_gpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert adoption.print_kills(2, 60, 0, tmp_path, 12) == 0
    said = capsys.readouterr().out
    assert said == "2 kills: 0 runs lost, 0 artifacts with other bytes, 0 times no artifact to read\n"


def test_makes_up_rows_of_every_kind(tmp_path: Path) -> None:
    jobs = adoption.workloads(12)
    seen = [adoption.Example(str(n), "", "", "h200", "", {}, 1 << 30, 1 << 30) for n in range(len(jobs))]
    for name in ("a.csv", "b.csv"):
        adoption.write_history(tmp_path / name, 2000, jobs, seen, seed=3)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with open(tmp_path / "a.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2000
    assert {row["status"] for row in rows} == {"ok", "oom", "killed", "error", "mine"}
    assert {row["gpus"] for row in rows} == {"1", "4"}
    assert {"", "much"} <= {row["process_bytes"] for row in rows}
    assert {"", "stranger:model"} <= {row["target"] for row in rows}
    usable = sum(row["status"] in ("ok", "oom") and row["gpus"] == "1" for row in rows)
    assert 0.9 < usable / 2000 < 0.99
