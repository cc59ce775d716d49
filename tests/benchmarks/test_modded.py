"""Tests of modded-nanogpt's records: reading logs, cutting a script, and the table."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.logs import logged_data, modded
from benchmarks.accuracy.logs.logged import Answer
from benchmarks.accuracy.logs.logged_sources import Peaks
from benchmarks.accuracy.logs.modded import Record, files_of, read_records, report

SOURCE = "class Hyperparameters:\n    num_iterations: int = 1770 # number of iterations to run\n"
URL = "https://github.com/KellerJordan/modded-nanogpt/blob/" + "a" * 40 + "/records/track_1_short/2025-01-13_Fp8LmHead/log.txt"
ROW = {
    "url": URL,
    "log_path": "records/track_1_short/2025-01-13_Fp8LmHead/log.txt",
    "gpu": "NVIDIA H100 80GB HBM3",
    "torch": "2.7.0+cu126",
    "world_size": "8",
    "script": "c0ffee123456",
}


def record(source: str = SOURCE, **row: str) -> Record:
    return Record({**ROW, **row}, Peaks(100, 200), source)


@pytest.mark.parametrize(
    "line",
    [
        "    num_iterations : int = 1490 # number",
        "    num_iterations = 1395",
        "    num_scheduled_iterations: int = 2290",
        "    num_extension_iterations: int = 40",
    ],
)
def test_cuts_script_to_few_steps(line: str) -> None:
    assert re.search(r"= 6\b", files_of(f"class A:\n{line}\n")["train_gpt.py"])


def test_keeps_derived_numbers_of_steps() -> None:
    line = "    num_iterations: int = num_scheduled_iterations + num_extension_iterations"
    assert files_of(f"class A:\n{line}\n")["train_gpt.py"].splitlines()[1] == line


def test_extracts_imported_files_below_headings() -> None:
    line = "-" * 40
    files = files_of(f"{SOURCE}import kernels_of_mine\n\n{line}\n# kernels_of_mine.py\n{line}\n\nimport triton\n")
    assert files.keys() == {"train_gpt.py", "kernels_of_mine.py"}
    assert files["train_gpt.py"].endswith("import kernels_of_mine\n\n")
    assert files["kernels_of_mine.py"] == "\nimport triton\n"


@pytest.mark.parametrize(
    ("torch", "release"),
    [
        ("2.7.0+cu126", "2.7.0+cu126"),
        ("2.9.0.dev20250713+cu126", "2.9.0+cu126"),
        ("2.6.0.dev20241223+cu126", "2.7.0"),
        ("2.6.0.dev20241101+cu126", "2.6.0+cu126"),
    ],
)
def test_assigns_nightly_to_next_release(torch: str, release: str) -> None:
    assert record(torch=torch).torch == release


def test_gives_reason_for_records_left_out() -> None:
    assert record().left_out() == ""
    assert record(source="").left_out() == "a log without its source"
    assert "counted in another way" in record(source="print(1)").left_out()
    assert "is not known" in record(gpu="").left_out()


def test_requires_both_peaks_in_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(modded, "source_at", lambda repository, url: SOURCE)
    rows = [{**ROW, "metric": "allocated", "value_mib": "100"}, {**ROW, "metric": "reserved", "value_mib": "200"}]
    assert [one.peaks for one in read_records(rows, tmp_path)] == [Peaks(100, 200)]
    assert read_records(rows[:1], tmp_path) == []


def test_shows_peaks_of_run_and_unrun_records() -> None:
    done = record()
    kept = {(done.key, ""): Answer(done.key, line=(100, 210))}
    text = report([done, record(script="other")], kept, None)
    assert "| +0.00 % | +5.00 % | another torch |" in text
    assert "not run" in text


def test_begins_documents_with_last_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged_data, "_DOCUMENT_TOKENS", 100_000)
    folder = logged_data.documents(tmp_path)
    words = np.fromfile(folder / "fineweb_train_000002.bin", dtype="<u2")[2 * 256 :]
    begins = np.flatnonzero(words == 50256)
    assert len(words) == 100_000
    assert begins[0] == 0
    assert 500 < np.diff(begins).mean() < 1500
