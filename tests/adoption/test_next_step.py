"""One line after an adoption says what to change in the history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("xgboost")

from tests.adoption.test_adopt import refused
from tests.adoption.test_gate import GIB, scored
from vramcast.adoption.next_step import for_left_out, next_step
from vramcast.adoption.verdict import Candidate
from vramcast.datasets.run import Measurement, Passport, Run, Workload
from vramcast.jobs.job import Job


def judged(models: int, *, factor: float = 1.0, seconds: float | None = 60.0, precision: str | None = None) -> Candidate:
    """Return an evaluation; the measured peaks of the first model are `factor` times as large."""
    runs = scored(models)
    runs = [replace(run, measured_bytes=round(factor * run.measured_bytes)) if run.group == "m0" else run for run in runs]
    rows = [
        Run(
            run.id,
            Workload(run.group, optimizer="sgd", precision=cast(Any, precision)),
            Passport("csv"),
            Measurement("ok", process_bytes=10 * GIB, seconds=seconds),
        )
        for run in runs
    ]
    found = Candidate(cast(Any, None), rows, cast(Any, runs), (), runs)
    found.__dict__["everything"] = runs
    return found


def test_models_are_counted_up_to_the_next_level() -> None:
    assert next_step(judged(6), {}, 6) == "add jobs of 3 more models: a bound at 0.9 takes 9, and 6 are measured"
    assert "1 more model: a bound at 0.99 takes 99" in next_step(judged(6), {}, 98)


def test_model_with_wrong_estimates_comes_first() -> None:
    said = next_step(judged(6, factor=1.5), {}, 6)
    assert said.startswith("jobs of m0 take 1.5")
    assert "add their precision to the history" in said
    assert "unit of the peak" in next_step(judged(6, factor=0.5, precision="fp32"), {}, 6)


def test_rows_left_out_come_before_all() -> None:
    assert next_step(judged(6, factor=1.5), {"status unknown": 100}, 6).startswith("say how each job ended")
    assert not next_step(judged(6, factor=1.5), {"status unknown": 1}, 6).startswith("say how")


def test_durations_are_asked_for_last() -> None:
    assert "seconds=COLUMN" in next_step(judged(6, seconds=None), {}, 99)
    assert next_step(judged(6), {}, 99) == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",ok,", ",,", "--columns status=COLUMN"),
        ("torchvision:model", "", "--join"),
        (",8x3x32x32,", ",,", "--columns batch_size=COLUMN"),
    ],
)
def test_refusal_names_the_missing_column(
    old: str,
    new: str,
    said: str,
    tmp_path: Path,
    history: Callable[..., str],
    asked: list[Job],
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = Path(history("rows.csv", 30))
    text = rows.read_text().replace(old, new)
    rows.write_text("".join(line.replace(",0,", ",,") if new == "" else line for line in text.splitlines(keepends=True)))
    assert said in refused(capsys, str(rows), "--out", str(tmp_path / "site"))


def test_reasons_without_a_step_give_none() -> None:
    assert for_left_out({}) == for_left_out({"a dry run is no measurement": 1}) == ""
