"""Tests of VRAMBench: its counts, and bounds with whole sources held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy import examples as sets
from benchmarks.accuracy import shipped, vrambench
from benchmarks.measured.measured_run import EDGE, MeasuredRun
from benchmarks.repeats.results import Result, keep
from vramcast.core.plain import to_plain
from vramcast.core.units import MIB
from vramcast.learner import examples
from vramcast.learner.examples import Example

RUN = MeasuredRun(
    "mila-iqia/milabench", "0" * 40, "a.yaml", "MIT", "main.py", "resnet50", "device peak", 2 * MIB, "bytes", "repeatable",
    torch="2.7.1", traits="convolutions",
)  # fmt: skip


def example(number: int, error: float, **changes: object) -> Example:
    peak = (100 + number) * MIB
    made = Example(
        f"run {number}", f"model {number}", "net", "t4", "s", {}, peak, peak, measured_reserved=round(peak * (1 + error))
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sets, "BUILD", tmp_path)
    monkeypatch.setattr(vrambench, "BUILD", tmp_path)
    monkeypatch.setattr(shipped, "RUNS", tmp_path / "shipped_runs.jsonl")
    return tmp_path


def test_counts_leave_out_screened_rows_and_count_runs_once() -> None:
    edge = replace(RUN, figure=EDGE, value_bytes=None, batch=8, failed_batch=16, path="b.csv")
    rows = [RUN, replace(RUN, figure="reserved peak"), replace(RUN, quality="screened", model="vgg"), edge]
    found = vrambench.targets([*rows, replace(RUN, torch="2.6.0", licence="", model="mlp", traits="")])
    lines = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in found.splitlines()[2:]}
    assert lines["runs"] == ["1500", "3", "2", "1497"]
    assert lines["models"] == ["300", "2", "1", "298"]
    assert lines["runs with convolutions, torch 2.7 or later"][1] == "2"
    assert lines["of these, with a figure in bytes"][1] == "1"
    assert lines["models: none of these"][1] == "1"
    assert "| mila-iqia/milabench | 4 | 3 | 2 | 1 | 1 |" in vrambench.sources(rows)


def test_bounds_of_a_source_come_from_the_other_sources(build: Path) -> None:
    learned = [shipped.of_set(example(n, 0.01), "xmem") for n in range(40)]
    learned += [shipped.of_set(example(n, 0.5), "golf") for n in range(40)]
    examples.append(learned, shipped.RUNS)
    judged = vrambench.held_out(list(vrambench.read_examples({})))
    of = {name: [one.scored for one in judged if one.source == name] for name in ("xmem", "golf")}
    assert {len(runs) for runs in of.values()} == {40}
    cells = {name: vrambench.figures(name, runs) for name, runs in of.items()}
    assert cells["xmem"][5:7] == ["100.0 %", "55.5 %"]  # golf's residual, in bytes as large for these small jobs
    assert cells["golf"][5:7] == ["0.0 %", "1.1 %"]
    assert cells["golf"][1:4] == [40, 40, "33.3 %"]


def test_lone_source_has_no_bounds_and_peaks_below_the_context_are_left_out(build: Path) -> None:
    found = [example(n, 0.01) for n in range(9)]
    found[0] = replace(found[0], measured_reserved=None, measured_process=40 * MIB, context=50 * MIB)
    examples.append([shipped.of_set(one, "xmem") for one in found], shipped.RUNS)
    judged = vrambench.held_out(list(vrambench.read_examples({})))
    assert len(judged) == 8
    assert vrambench.figures("xmem", [one.scored for one in judged])[5:] == ["-"] * 6


def test_screened_and_censored_rows_are_not_judged(build: Path) -> None:
    kept, screened = RUN, replace(RUN, quality="screened", model="vgg")
    for run in (kept, screened):
        found = example(1, 0.1, measured_reserved=None, measured_process=160 * MIB, context=50 * MIB)
        keep(Result(run.key, run.figure, 160 * MIB, example=to_plain(found)), build / "repeats-yolo.jsonl")
    learned = [shipped.of_set(example(n, 0.01, censored=n == 3), "xmem") for n in range(9)]
    examples.append(learned, shipped.RUNS)
    judged = vrambench.held_out(list(vrambench.read_examples({run.key: run for run in (kept, screened)})))
    of = [one for one in judged if one.source == "yolo"]
    assert [(one.torch, one.scored.measured_bytes) for one in of] == [("2.7.1", 110 * MIB)]
    assert len(judged) == 1 + 8
    assert "| 2.7 | 1 | 1 |" in vrambench.judgment(judged)
