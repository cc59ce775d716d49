"""Ultralytics' logs as jobs: what is read from a row, which rows are left out, and the stub data."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measured.logs import yolo_runs
from benchmarks.measured.measured_run import MeasuredRun
from benchmarks.measured.screens import screened
from benchmarks.repeats import yolo, yolo_data
from benchmarks.repeats.yolo_data import StubData

ROW = {
    "source": "owner/name:folder/train.ipynb", "commit": "c0ffee", "quoted": "1/100 2.5G … 3G", "model": r"D:\runs\yolo26n.pt",
    "task": "detect", "batch": "16", "imgsz": "640", "precision": "amp", "optimizer": "AdamW", "card": "Tesla T4",
    "card_mib": "14913", "n_cards": "1", "torch": "2.11.0+cu128", "figure_first_MiB": "2560.0", "unit_bytes": str(2**30),
    "os": "linux", "cuda": "128", "cudnn": "", "framework": "Ultralytics 8.4.90", "n_classes": "2", "n_images": "3717",
    "args_of_note": '{"freeze": "None", "mosaic": "1.0", "nbs": "64"}', "completeness": "yes", "licence": "none",
    "boxes_per_image": "1.88", "run_index": "1/1", "flags": "",
}  # fmt: skip


def run(cells: dict[str, str] | None = None, **changed: Any) -> MeasuredRun:
    (row,) = yolo_runs([{**ROW, **(cells or {})}])
    return replace(screened(row), **changed)


def test_reads_what_decides_the_job() -> None:
    read = run()
    assert (yolo.name_of(read), yolo.release_of(read), yolo.task_of(read)) == ("yolo26n", "8.4.90", "detect")
    arguments = yolo.arguments_of(read)
    assert (arguments["epochs"], arguments["batch"], arguments["mosaic"], "freeze" in arguments) == (100, 16, 1.0, False)


def test_shortens_epoch_and_keeps_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[StubData] = []
    monkeypatch.setattr(yolo_data, "written", lambda data: made.append(data) or Path("data.yaml"))
    yolo.arguments_of(run())
    yolo.arguments_of(run({"n_images": "40"}))
    assert [(data.images, data.of) for data in made] == [(3 * 16 + 3717 % 16, 3717), (40, 40)]


def test_divides_boxes_by_validation_images(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = {name: text for name, text in ROW.items() if name != "boxes_per_image"}
    tables = {
        yolo.TABLES[0]: [unknown],
        yolo.TABLES[1]: [],
        yolo.BOXES: [{**unknown, "n_val_images": "50", "n_val_boxes": "200"}],
    }
    monkeypatch.setattr(yolo, "read_rows", tables.__getitem__)
    for is_known, boxes in ((True, "4.00"), (False, None)):
        monkeypatch.setattr(yolo, "has_rows", lambda name, is_known=is_known: is_known)
        assert [row.options.get("boxes_per_image") for row in yolo.runs()] == [boxes]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"torch": "2.6.0+cu124"}, "older than 2.7"),
        ({"task": "classify"}, "no stub data"),
        ({"n_classes": ""}, "number of classes"),
        ({"batch": "-1"}, "batch is unknown"),
        ({"n_cards": "2", "completeness": "several GPUs listed (batch is split)"}, "several cards"),
        ({"flags": "not an NVIDIA card"}, "not a card of NVIDIA"),
        ({"flags": "own loss (by the repository name)"}, "repository's own"),
        ({"flags": "resumed run"}, "a resumed run"),
        ({"card": "NVIDIA GeForce RTX 9999"}, "not known"),
    ],
)
def test_names_reason_of_row_without_a_job(cells: dict[str, str], reason: str) -> None:
    case = yolo.case_of(run(cells))
    assert isinstance(case, str)
    assert reason in case


@pytest.mark.parametrize(
    ("log", "is_left_out"),
    [
        ("label cache kept; in the notebook's process", True),
        ("run folder 2; in the notebook's process", True),
        ("label cache kept; run folder 2", False),  # a command has a process of its own
        ("in the notebook's process", False),
    ],
)
def test_screens_run_that_its_log_shows_to_be_a_later_one(log: str, is_left_out: bool) -> None:
    assert ("a later run" in run({"flags": log}).reason) is is_left_out


def test_collects_model_of_check_if_labels_were_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yolo, "packages", lambda *_: Path())
    monkeypatch.setattr(yolo, "network_of", lambda *_: "yolo26n")
    monkeypatch.setattr(yolo_data, "written", lambda _: Path("data.yaml"))
    cases = [yolo.case_of(run({"flags": flags})) for flags in ("label cache kept", "")]
    described = [json.loads(case.job.command.words[1]) for case in cases if not isinstance(case, str) and case.job.command]
    assert [job["collects"] for job in described] == [True, False]


def test_screens_figure_near_size_of_card() -> None:
    assert "nearly full card" in run({"figure_first_MiB": "14300.0"}).reason


@pytest.mark.parametrize(
    ("model", "network"),
    [("yolo11n-seg", "yolo11n-seg"), ("yolov9t", "yolov9t"), ("yolov5nu", "yolov5n"), ("yolov12s", ""), ("yolo26n", "")],
)
def test_finds_configuration_of_model(model: str, network: str, tmp_path: Path) -> None:
    for name in ("11/yolo11-seg", "v9/yolov9t", "v5/yolov5"):
        path = tmp_path / f"ultralytics/cfg/models/{name}.yaml"
        path.parent.mkdir(parents=True)
        path.touch()
    assert yolo.network_of(model, tmp_path) == network


@pytest.mark.parametrize(("batch", "steps", "batches"), [(16, 233, 2), (16, 10, 1), (64, 100, 1), (128, 100, 1), (4, 179, 6)])
def test_accumulates_as_at_end_of_logged_epoch(batch: int, steps: int, batches: int) -> None:
    assert yolo.last_accumulation(batch, 64, steps) == batches


def test_sample_of_data_has_the_fullest_image() -> None:
    data = StubData("detect", images=20, of=4000, classes=3, boxes=4.0)
    sample = yolo_data.counts(data, random.Random(0))
    whole = yolo_data.counts(replace(data, images=4000), random.Random(0))
    assert (len(sample), max(sample), min(sample)) == (20, max(whole), 1)
    assert sum(whole) / len(whole) == pytest.approx(data.boxes, rel=0.05)


@pytest.mark.parametrize(("task", "numbers"), [("detect", 5), ("segment", 9), ("obb", 9)])
def test_writes_labels_of_task(task: str, numbers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yolo_data, "FOLDER", tmp_path)
    described = yolo_data.written(StubData(task, images=3, of=3, classes=2, boxes=2.0))
    assert "1: c1" in described.read_text()
    lines = [line for path in described.parent.glob("train/labels/*.txt") for line in path.read_text().splitlines()]
    assert len(lines) >= 3
    assert {len(line.split()) for line in lines} == {numbers}
