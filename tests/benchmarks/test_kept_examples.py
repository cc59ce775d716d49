"""Tests of stored answers as examples: on made-up ones, without any run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import kept_examples, published_peaks
from benchmarks.accuracy.kept_examples import figure_example, logged_example, report, titan_example
from benchmarks.accuracy.logs import logged, modded, titan
from benchmarks.accuracy.logs.logged_sources import Peaks
from vramcast.core.units import MIB
from vramcast.learner import examples

SAID: dict[str, Any] = {
    "device": "h100", "steps": 6, "tracer": "nullgpu", "torch": "2.9.1+cu128", "context_bytes": 7, "world_size": 2,
    "peaks": {"allocated": 30 * MIB, "reserved": 40 * MIB},
    "ranks": [
        {"rank": 0, "peaks": {"allocated": 10 * MIB, "reserved": 20 * MIB}},
        {"rank": 1, "peaks": {"allocated": 30 * MIB, "reserved": 40 * MIB}},
    ],
    "traits": {"operators": "attention", "compiled": "yes", "torch": "same", "ranks": "several", "speed": "any"},
}  # fmt: skip
ROW = {
    "script": "0123456789ab", "log_blob": "f" * 40, "log_path": "records/a/train.txt", "gpu": "NVIDIA H100 80GB HBM3",
    "torch": "2.9.1+cu128", "driver": "570", "world_size": "8", "compile": "compiled",
}  # fmt: skip
ANSWER = logged.Answer("f" * 40, 11 * MIB, 13 * MIB, (9, 12), said=SAID)
TITAN = titan.Row("0123456789", "2025-07-01", 'CONFIG_FILE="./a/llama3_8b.toml" ./run_train.sh', 21.0, "", 95.0)
FIGURE = published_peaks.Figure("fsdp_qlora, x", "reserved", 41.0, 40.0, group="fsdp_qlora Llama-2 7B", said=SAID)


def test_makes_example_of_logged_run() -> None:
    example = logged_example("golf", ROW, ANSWER, Peaks(10, 14))
    assert example is not None
    assert (example.allocated, example.reserved) == (9 * MIB, 12 * MIB)
    assert (example.measured_allocated, example.measured_reserved) == (10 * MIB, 14 * MIB)
    traits = {"batches": "alike", **SAID["traits"]}
    assert (example.group, example.gpu, example.traits, example.features) == ("golf 0123456789ab", "h100", traits, {})


def test_counts_timed_out_run_after_two_steps() -> None:
    example = logged_example("golf", ROW, replace(ANSWER, line=None), Peaks(10, 14))
    assert example is not None
    assert (example.allocated, example.reserved, example.facts["reached"]) == (11 * MIB, 13 * MIB, "steps")


@pytest.mark.parametrize(
    "change", [{"line": None, "said": {**SAID, "steps": 1}}, {"otherwise": ["layers 9, here 10"]}, {"said": {}}]
)
def test_skips_runs_cut_short_or_different(change: dict[str, Any]) -> None:
    assert logged_example("golf", ROW, replace(ANSWER, **change), Peaks(10, 14)) is None


def test_makes_example_of_torchtitan_rank_0() -> None:
    example = titan_example(TITAN, titan.Answer(20.0, said=SAID))
    assert (example.allocated, example.reserved, example.measured_reserved) == (10 * MIB, 20 * MIB, 21 * MIB)
    assert example.group == "titan llama3_8b"
    alone = titan_example(
        replace(TITAN, typed="MODULE=a CONFIG=b ./run_train.sh"), titan.Answer(20.0, said={**SAID, "ranks": []})
    )
    assert (alone.group, alone.reserved) == ("titan b", 40 * MIB)


def test_makes_example_of_one_published_peak() -> None:
    reserved = figure_example(FIGURE)
    assert reserved is not None
    assert (reserved.reserved, reserved.measured_reserved, reserved.measured_allocated) == (40 * MIB, 41 * MIB, None)
    allocated = figure_example(replace(FIGURE, job="nanoVLM 1eed2578, batch 4", metric="allocated"))
    assert allocated is not None
    assert (allocated.allocated, allocated.measured_allocated, allocated.measured_reserved) == (40 * MIB, 41 * MIB, None)
    for other in ("nanoVLM 1eed2578, batch 4, out of memory", "nanoVLM 1eed2578, the model on the card"):
        assert figure_example(replace(FIGURE, job=other)) is None
    assert figure_example(replace(FIGURE, here_mib=None)) is None


def test_writes_stored_answers_for_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_peaks, "KEPT", tmp_path / "published_peaks.jsonl")
    older = replace(FIGURE, here_mib=None)
    assert list(published_peaks.keep([older, FIGURE])) == [older, FIGURE]
    made = list(kept_examples.KEPT["qlora"](tmp_path))
    assert len(made) == 1
    examples.append(made, tmp_path / "examples.jsonl")
    assert examples.read(tmp_path / "examples.jsonl") == (made, [])


def test_finds_logged_answers_by_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{ROW['log_blob']}.log").write_text("peak memory allocated: 10 MiB reserved: 14 MiB\n")
    monkeypatch.setattr(kept_examples, "read_rows", lambda name: [ROW])
    monkeypatch.setattr(logged, "kept_answers", lambda: {("f", ""): ANSWER, ("e", ""): replace(ANSWER, key="e" * 40)})
    (example,) = kept_examples.golf(tmp_path)
    assert example.measured_reserved == 14 * MIB


def test_finds_records_by_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {name: text for name, text in ROW.items() if name != "script"}
    rows = [{**row, "metric": "allocated", "value_mib": "10"}, {**row, "metric": "reserved", "value_mib": "14"}]
    monkeypatch.setattr(kept_examples, "read_rows", lambda name: rows)
    monkeypatch.setattr(modded, "KEPT", tmp_path / "modded.jsonl")
    logged.keep(replace(ANSWER, key=f"{ROW['script']} {ROW['log_path']}"), modded.KEPT)
    logged.keep(replace(ANSWER, key=f"{ROW['script']} elsewhere.txt"), modded.KEPT)
    (example,) = kept_examples.KEPT["modded"](tmp_path)
    assert (example.group, example.reserved, example.measured_reserved) == ("modded 0123456789ab", 12 * MIB, 14 * MIB)


def test_reports_error_of_each_class() -> None:
    example = logged_example("golf", ROW, ANSWER, Peaks(10, 16))
    assert example is not None
    text = report([example, replace(example, group="other")])
    assert "| attention, yes, same, several, any | 2 | allocated | 2 | 10.00 % |" in text
    assert "| attention, yes, same, several, any | 2 | reserved | 2 | 25.00 % |" in text
