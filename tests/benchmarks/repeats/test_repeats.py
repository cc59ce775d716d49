"""Tests of the harness that repeats measured rows: on made-up rows, without any run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy.runner import Case
from benchmarks.measured.measured_run import MeasuredRun, write_runs
from benchmarks.repeats import __main__ as command
from benchmarks.repeats import milabench, packages, super_resolution
from benchmarks.repeats.results import Result, keep, kept, summary
from benchmarks.repeats.rows import distinct, in_fair_order
from vramcast.core.errors import JobError
from vramcast.core.units import MIB
from vramcast.hardware import stack
from vramcast.hardware.stack import Stack

RUN = MeasuredRun(
    "owner/name", "c0", "table.csv", "MIT", "train.py", "net", "allocated peak", 100 * MIB, "MiB", "repeatable", batch=8
)  # fmt: skip
RESULT = Result("k", "allocated peak", 100, allocated=110, reserved=120, process=150, settled=115, example={"family": "cnn"})


class Rows:
    """A harness of made-up rows, which never gives a job."""

    def __init__(self, *runs: MeasuredRun) -> None:
        self._runs = [*runs]

    def runs(self) -> list[MeasuredRun]:
        return self._runs

    def case_of(self, run: MeasuredRun) -> Case | str:
        return f"{run.model} is closed"


def test_rows_that_repeat_one_are_one_with_the_median_value() -> None:
    rows = distinct(replace(RUN, value_bytes=value) for value in (5, 1, 9, 3))
    assert {key: run.value_bytes for key, run in rows.items()} == {RUN.key: 3}


def test_options_and_batch_tell_rows_apart() -> None:
    assert len({run.key for run in (RUN, replace(RUN, batch=9), replace(RUN, options={"scale": 2}))}) == 3


def test_prefix_of_the_order_has_each_model_and_survives_more_rows() -> None:
    runs = [replace(RUN, model=model, batch=batch) for model in "abc" for batch in range(6)]
    rows = distinct(runs)
    order = in_fair_order(rows, 0)
    assert {rows[key].model for key in order[:3]} == {*"abc"}
    assert order != in_fair_order(rows, 1)
    assert in_fair_order(distinct(runs[:12]), 0) == [key for key in order if rows[key].model != "c"]


def test_rows_that_a_screen_leaves_out_come_last() -> None:
    rows = distinct(replace(RUN, batch=batch, quality="screened" if batch % 2 else "repeatable") for batch in range(6))
    assert [rows[key].quality for key in in_fair_order(rows, 0)] == ["repeatable"] * 3 + ["screened"] * 3


@pytest.mark.parametrize(
    ("figure", "estimated"),
    [("allocated peak", 110), ("reserved peak", 120), ("reserved at print", 115), ("process peak", 150), ("device peak", 157)],
)
def test_compares_the_figure_that_was_measured(figure: str, estimated: int) -> None:
    assert replace(RESULT, figure=figure, outside=7 if figure == "device peak" else 0).estimated == estimated


def test_last_result_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "build" / "kept.jsonl"
    keep(RESULT, path)
    keep(replace(RESULT, allocated=111), path)
    assert kept(path) == {"k": replace(RESULT, allocated=111)}


def test_summary_has_groups_and_reasons() -> None:
    text = summary([RESULT, Result("m", "allocated peak", 5, message="closed")])
    assert "| cnn | allocated peak | 1 | 10.00 %" in text
    assert text.endswith("1 without an estimate: closed")


def test_training_that_raised_before_a_step_has_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    job = SimpleNamespace(stack=None, training=SimpleNamespace(mode="train"))
    ended = SimpleNamespace(steps=0, course=SimpleNamespace(ended="it raised ValueError"))
    harness = Rows(RUN)
    monkeypatch.setattr(harness, "case_of", lambda run: Case("row", job, run.value_bytes))  # type: ignore[arg-type]
    monkeypatch.setattr(command, "estimate_of", lambda case, cudnn="": ended)
    assert command.repeated("k", RUN, harness).message == "no training step: it raised ValueError"


def test_command_keeps_each_reason_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "BUILD", tmp_path)
    monkeypatch.setattr(command, "harness_of", lambda source: Rows(RUN, replace(RUN, model="other")))
    for limit in ("1", "5", "5"):
        monkeypatch.setattr(sys, "argv", ["repeats", "milabench", "--limit", limit])
        command.main()
    lines = (tmp_path / "repeats-milabench.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["message"] for line in lines) == ["net is closed", "other is closed"]
    assert "1 without an estimate: net is closed" in capsys.readouterr().out


def test_error_of_a_job_is_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(case: Case) -> None:
        raise JobError("it raised")

    monkeypatch.setattr(command, "estimate_of", refuse)
    harness = Rows(RUN)
    monkeypatch.setattr(harness, "case_of", lambda run: Case("row", SimpleNamespace(stack=None), run.value_bytes))  # type: ignore[arg-type]
    found = command.repeated("k", RUN, harness)
    assert (found.message, found.is_repeatable) == ("JobError: it raised", True)


SUPER = replace(
    RUN, repository="the-database/traiNNer-redux", model="span_s", batch=1,
    options={"scale": 2, "memory_format": "channels_last"},
)  # fmt: skip


def test_super_resolution_row_runs_the_script_of_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(super_resolution, "project", lambda *words: asked.extend(words) or tmp_path / "theirs")
    monkeypatch.setattr(super_resolution, "packages", lambda *requirements: tmp_path / "packages")
    case = super_resolution.case_of(SUPER)
    assert isinstance(case, Case)
    assert asked[:2] == [SUPER.repository, SUPER.commit]
    assert case.job.command is not None
    described = json.loads(case.job.command.words[1])
    assert {"name": "span_s", "scale": 2, "channels_last": True}.items() <= described.items()
    assert described["printed"] == case.facts["printed"]
    assert case.job.search_path[0] == str(tmp_path / "packages")


def test_job_that_ended_before_it_printed_has_no_estimate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    printed = tmp_path / "peak.json"
    job = SimpleNamespace(stack=None, training=SimpleNamespace(mode="infer"))
    case = Case("row", job, RUN.value_bytes, {"printed": str(printed)})  # type: ignore[arg-type]
    harness = Rows(RUN)
    monkeypatch.setattr(harness, "case_of", lambda run: case)
    for ended, said in (("", "the job ended by itself"), ("its time was up after 9 s", "its time was up after 9 s")):
        found = SimpleNamespace(course=SimpleNamespace(ended=ended))
        monkeypatch.setattr(command, "estimate_of", lambda case, cudnn="", found=found: found)
        assert command.repeated("k", RUN, harness).message == f"the peak was not printed: {said}"


def test_row_traced_once_has_the_printed_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    printed = tmp_path / "peak.json"
    peaks = {"allocated": 30, "reserved": 70}
    trace = SimpleNamespace(header={"peaks": peaks}, step=np.array([0]), reserved_bytes=lambda: np.array([70]))

    def traced(*_: object, **__: object) -> SimpleNamespace:
        printed.write_text(json.dumps({"reserved": 50}))
        return SimpleNamespace(trace=trace)

    monkeypatch.setattr(command.NullGpuTracer, "shared", lambda: SimpleNamespace(trace=traced))
    harness = Rows(RUN)
    case = Case("row", None, RUN.value_bytes, {"printed": str(printed), "family": "cnn"})  # type: ignore[arg-type]
    monkeypatch.setattr(harness, "case_of", lambda run: case)
    found = command.repeated("k", replace(RUN, figure="reserved at print"), harness, once=True)
    assert (found.allocated, found.reserved, found.estimated, found.example) == (30, 50, 50, None)
    assert "| cnn | reserved at print | 1 |" in summary([found])


def test_row_that_another_process_repeated_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "repeats-milabench.jsonl"
    runs = [RUN, replace(RUN, model="other")]
    first, second = in_fair_order(distinct(runs), 0)

    def repeated(key: str, *_: object, once: bool) -> Result:
        assert key == first
        keep(replace(RESULT, key=second), path)
        return replace(RESULT, key=key)

    monkeypatch.setattr(command, "BUILD", tmp_path)
    monkeypatch.setattr(command, "harness_of", lambda source: Rows(*runs))
    monkeypatch.setattr(command, "repeated", repeated)
    monkeypatch.setattr(sys, "argv", ["repeats", "milabench"])
    command.main()
    assert len(path.read_text().splitlines()) == 2


def test_rows_of_another_table_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_runs([replace(RUN, model="theirs")], tmp_path / "rows.csv")
    asked: list[str] = []

    def repeated(key: str, run: MeasuredRun, *_: object, once: bool) -> Result:
        asked.append(run.model)
        return replace(RESULT, key=key)

    monkeypatch.setattr(command, "BUILD", tmp_path / "absent" / "folder")
    monkeypatch.setattr(command, "harness_of", lambda source: Rows(RUN))
    monkeypatch.setattr(command, "repeated", repeated)
    monkeypatch.setattr(sys, "argv", ["repeats", "milabench", "--rows", str(tmp_path / "rows.csv")])
    command.main()
    assert asked == ["theirs"]
    assert (tmp_path / "absent" / "folder").is_dir()  # where jobs print
    monkeypatch.setattr(sys, "argv", ["repeats", "milabench", "--rows", str(tmp_path / "none.csv")])
    with pytest.raises(SystemExit):
        command.main()


@pytest.mark.parametrize("requirements", [("a==1",), ("a==2",)])
def test_packages_are_installed_once(requirements: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "FOLDER", tmp_path)
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(packages, "_run", lambda *words: calls.append(words))
    folders = {packages.packages(*requirements) for _ in range(2)}
    assert len(calls) == len(folders) == 1
    assert (calls[0][-1:], [path.name for path in tmp_path.iterdir()]) == (requirements, [next(iter(folders)).name])


@pytest.mark.parametrize(
    ("said", "fetched"),
    [
        ("cudnn==9.5.1.17", ["9.12.0"]),
        ("cudnn==9.15.1", ["9.15.1"]),
        ("torch==2.6.0", ["9.12.0"]),
        ("cudnn==9.19.0", []),
        ("", []),
    ],
)
def test_the_cudnn_that_answers_for_a_row_is_fetched(said: str, fetched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(packages, "fetch", asked.append)
    monkeypatch.setattr(packages, "installed_stack", lambda: Stack(cudnn="9.19.0"))
    packages.cudnn(stack.parse(said) if said else None)
    assert asked == fetched


MILA = replace(
    RUN, repository="mila-iqia/milabench", job="resnet50", model="torchvision resnet50", batch=64, figure="device peak",
    card="H100 80GB", card_bytes=81559 * MIB,
)  # fmt: skip


def test_milabench_row_has_the_arguments_of_its_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(milabench, "project", lambda *words: tmp_path / "theirs")
    monkeypatch.setattr(milabench, "packages", lambda *requirements: tmp_path / "packages")
    case = milabench.case_of(MILA)
    assert isinstance(case, Case)
    assert case.job.command is not None
    words = " ".join(case.job.command.words)
    assert all(text in words for text in ("torchvision/main.py 64 ", "--optim channel_last", "--batch-size 64"))
    assert case.facts["outside"] == str(81559 * MIB - case.job.device.total_bytes)


def test_milabench_row_of_several_cards_traces_a_rank_of_its_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(milabench, "project", lambda repository, *words: tmp_path / repository)
    monkeypatch.setattr(milabench, "packages", lambda *requirements: tmp_path / "packages")
    case = milabench.case_of(replace(MILA, job="vjepa-gpus", card="L40S"))
    assert isinstance(case, Case)
    assert case.job.command is not None
    assert (case.job.command.world.size, case.job.command.ranks) == (4, (0,))
    assert str(tmp_path / "facebookresearch/jepa") in case.job.search_path
    assert case.job.command.words[-2:] == ("--batch_size", "64")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"quality": "screened", "reason": "a nearly full card"}, "nearly full"),
        ({"job": "torchatari"}, "no harness"),
        ({"card": "not named"}, "not named"),
        ({"card": "H200", "job": "lightning-gpus"}, "number of cards"),
    ],
)
def test_milabench_row_is_screened_by_the_row_alone(change: dict[str, Any], reason: str) -> None:
    found = milabench.case_of(replace(MILA, **change))
    assert isinstance(found, str)
    assert reason in found


def test_milabench_rows_of_runs_that_stopped_early_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    same = [replace(MILA, batch=batch) for batch in (1, 8, 16, 16)]
    monkeypatch.setattr(milabench, "runs", lambda: same)
    milabench.figures.cache_clear()
    assert "same figure" in str(milabench.case_of(MILA))
    monkeypatch.setattr(milabench, "runs", lambda: same[1:])
    milabench.figures.cache_clear()
    assert not milabench.has_stopped_early(MILA)
    milabench.figures.cache_clear()
