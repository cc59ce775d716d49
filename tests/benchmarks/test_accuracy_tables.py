"""The appendix of docs/accuracy.md, and the table of runs simulated earlier."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy import runner
from benchmarks.accuracy.logs import tabled
from benchmarks.site import accuracy_tables

XMEM_ROW = {
    "gpu": "rtx3060", "family": "cnn", "generation": "g1", "model": "VGG16", "optimizer": "SGD", "batch": 8, "real_oom": False,
    "predicted_oom": False, "status": "ok", "measured_bytes": 100 << 20, "estimate_bytes": 110 << 20,
    "endless_bytes": 110 << 20, "no_workspace_bytes": 90 << 20, "installed_bytes": 100 << 20, "retries": 0, "message": "",
    **{f"{tool}_bytes": "" for tool in ("xmem", "dnnmem", "schedtune", "llmem")},
    **{f"{tool}_oom": "" for tool in ("dnnmem", "schedtune", "llmem")}, "xmem_oom": "True",
}  # fmt: skip
MLP_ROW = {"file": "gpumemnet_mlp_step1.csv", "status": "ok", "measured_mib": 1500, "reserved_mib": 70, "offset_mib": 1430}
REAL_ROW = {"name": "BERT_large 8", "status": "ok", "measured_bytes": 9, "process_bytes": 9, "no_workspace_bytes": 9}
TIMM_ROW = {
    "model": "vgg11", "batch": 8, "status": "ok", "measured_bytes": 3 << 30, "reserved_bytes": 2 << 30,
    "searching_bytes": 2 << 30, "no_workspace_bytes": 2 << 30, "message": "",
}  # fmt: skip


def test_reads_kept_rows_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "BUILD", tmp_path)
    runner.write_csv("xmem", [XMEM_ROW])
    assert runner.read_csv("xmem") == [{**XMEM_ROW, "xmem_oom": True}]


def test_missing_results_name_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "BUILD", tmp_path)
    with pytest.raises(SystemExit, match=r"python -m benchmarks\.accuracy\.timm_a100"):
        runner.read_csv("timm_a100")


@pytest.mark.parametrize("kept", [False, True])
def test_page_has_every_table(kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "BUILD", tmp_path)
    parts: dict[str, dict[str, object]] = dict(zip(accuracy_tables.SETS, (XMEM_ROW, MLP_ROW, REAL_ROW, TIMM_ROW), strict=True))
    for name, row in parts.items():
        runner.write_csv(name, [row])
    rows = {name: runner.read_csv(name) if kept else [row] for name, row in parts.items()}
    page = accuracy_tables.page_of(rows, tabled.read_table())
    assert "| rtx3060 cnn | vramcast | 1 | 10.00 % |" in page
    assert "| xMem | 1 | 0 | 0 | 1 | 0 |" in page  # a false alarm
    assert "| gpumemnet_mlp_step1.csv | 1 | 1430 MiB | 100.0 % |" in page
    assert "| with workspaces | 1024 MiB | 1 | 0.00 % |" in page
    assert page.count("\n## ") == 8


def test_page_shows_the_table_of_simulated_runs() -> None:
    page = accuracy_tables.PAGE.read_text(encoding="utf-8")
    runs = tabled.read_table()
    assert accuracy_tables.group_table(runs) in page
    assert accuracy_tables.far_table(runs) in page


def test_examples_leave_out_runs_with_other_settings() -> None:
    found = tabled.rows()
    assert len(found) == 66 + 13 + 18
    assert {row.source for row in found} == {"golf", "titan", "qlora", "modded", "nanovlm"}
    assert "18824862" not in {row.script for row in found}  # its log does not print a setting
    compiled = next(row for row in found if row.name == "5167662d 4959c694").example()
    assert (compiled.traits["compiled"], compiled.traits["torch"], compiled.traits["ranks"]) == ("yes", "other", "one")
