"""`vramcast import`: appends each run once, rejects bad rows, and prints a summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.cli.main import main
from vramcast.datasets.journal import read_runs

from . import samples


def written(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def test_appends_once_and_writes_rejected_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, store = written(tmp_path, "jobs.txt", samples.SACCT), str(tmp_path / "store.jsonl")
    assert main(["import", "sacct", source, "--out", store, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["runs"], first["imported"], first["already_there"], first["rejected"]) == (2, 2, 0, 1)
    assert main(["import", "sacct", source, "--out", store, "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert (second["imported"], second["already_there"]) == (0, 2)
    runs = read_runs(store).runs
    assert [run.id for run in runs] == ["sacct-11", "sacct-12"]
    assert runs[0].passport.source == "jobs.txt"
    aside = (tmp_path / "store.rejected.jsonl").read_text().splitlines()
    assert json.loads(aside[0])["text"] == "nonsense"


def test_prints_only_summary_without_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path, "table.csv", samples.CSV)
    assert main(["import", "csv", source]) == 0
    assert "nothing is written" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_other_format_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, store = written(tmp_path, "x.csv", b"a,b\n1,2\n"), tmp_path / "store.jsonl"
    assert main(["import", "sacct", source, "--out", str(store)]) == 2
    assert "Check the format" in capsys.readouterr().err
    assert not store.exists()


def test_accepts_empty_history(tmp_path: Path) -> None:
    assert main(["import", "sacct", written(tmp_path, "jobs.txt", b"JobID|State|TRESUsageInMax\n")]) == 0


def test_rules_make_runnable_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = written(tmp_path, "rules.json", b'[{"name": "train", "target": "torchvision:vgg16", "batch": ["8x3x224x224"]}]')
    source = written(tmp_path, "jobs.txt", samples.SACCT)
    assert main(["import", "sacct", source, "--join", rules, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["with_target"] == 1
    assert any("1 of 2 runs match a rule" in note for note in summary["notes"])


@pytest.mark.parametrize("arguments", [["excel", "x"], ["sacct", "absent"], ["sacct", "x", "--out", "store.csv"]])
def test_wrong_arguments_exit_2_with_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_writes_and_extends_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    from vramcast.datasets.tables import read_set

    store = tmp_path / "set.parquet"
    source = written(tmp_path, "jobs.txt", samples.SACCT)
    table = written(tmp_path, "table.csv", samples.CSV)
    for arguments in (["sacct", source], ["csv", table], ["sacct", source]):
        assert main(["import", *arguments, "--out", str(store)]) == 0
    capsys.readouterr()
    ids = [run.id for run in read_set(store).runs]
    assert ids[:2] == ["sacct-11", "sacct-12"]
    assert len(ids) == len(set(ids)) > 2
    assert main(["import", "sacct", source, "--out", str(tmp_path / "set.txt")]) == 2
    assert "must end in .jsonl or .parquet" in capsys.readouterr().err
