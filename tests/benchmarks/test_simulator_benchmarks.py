"""Tests of a sample of benchmarks/simulator/jobs.py, and of its tools: whole jobs simulated and run, equal to the byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulator import jobs as simulator_jobs
from benchmarks.speed import simulator
from benchmarks.surveys import survey_models
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.simulator.engine import play
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.tracer.format.trace import Action, Trace

Need = Callable[[str], Any]
A100 = device("a100-40gb")
MIB = 1 << 20


def _image_job(name: str, batch_size: int, **options: object) -> Job:
    labels = TensorSpec((batch_size,), "int64", high=4)
    training = Training(steps=2, **options)  # type: ignore[arg-type]
    return Job(A100, f"torchvision:{name}", batch=TensorSpec((batch_size, 3, 64, 64)), labels=labels, training=training)


def _jobs(folder: Path, need: Need) -> dict[str, Job]:
    need("torchvision")
    need("transformers")
    tokens = TensorSpec((64, 64), "int64", high=128)
    text = {
        name: replace(survey_models.hugging_face_job(A100, name, folder), batch={"input_ids": tokens, "labels": tokens})
        for name in ("bert", "llama")
    }
    return {
        "vgg11, adam": _image_job("vgg11", 32),
        "alexnet, sgd, amp-bf16": _image_job("alexnet", 128, optimizer="sgd", precision="amp-bf16"),
        "llama, adamw": text["llama"],
        "bert, inference": text["bert"].with_training(mode="infer"),
    }


@pytest.mark.release
@pytest.mark.usefixtures("needs_null_gpu")
def test_simulates_four_jobs_to_the_byte(tmp_path: Path, need: Need) -> None:
    rows = [row for name, job in _jobs(tmp_path, need).items() for row in simulator_jobs.compare(name, job)]
    assert len(rows) == 4 * 6 * 3
    assert simulator_jobs.differences(rows) == []
    assert [row for row in rows if not row.own_is_equal] == []
    # Autocast frees its copies of the weights in the order of a hash table, which differs between runs.
    assert [row for row in rows if row.first is not None and "amp" not in row.job] == []
    # The smallest card is one on which the job runs; with a byte less it does not run.
    assert {row.card for row in rows if not row.run.fits} == {"1 byte less"}
    assert all(not row.run.fits for row in rows if row.card == "1 byte less")
    # The sample must contain its purpose: effective settings, retries, and collected garbage.
    peaks = {(row.job, row.run.reserved) for row in rows if row.card == "no end"}
    assert len(peaks) > 2 * 4
    assert any(row.run.retries for row in rows if row.card == "smallest")
    assert any(row.given_back and not row.run.retries for row in rows if row.card == "1.15 x")


@pytest.mark.usefixtures("needs_null_gpu")
def test_separates_changed_requests_from_simulator_errors(need: Need) -> None:
    need("torchvision")
    rows = simulator_jobs.compare("resnet18", _image_job("resnet18", 64), ("expandable_segments:True",))
    parted = {row.card: row.first for row in rows if not row.is_equal}
    assert "no end" not in parted
    assert parted["smallest"] is not None
    assert parted["smallest"].startswith("OOM")
    assert all(row.survived for row in rows if not row.is_equal)
    assert all(line.endswith("the job made other requests") for line in simulator_jobs.differences(rows))


def test_samples_fifty_jobs_from_three_lists(tmp_path: Path, need: Need) -> None:
    for module in ("torchvision", "timm"):
        need(module)
    jobs = simulator_jobs.sample(50, 2026, tmp_path)
    assert jobs == simulator_jobs.sample(50, 2026, tmp_path)
    assert jobs.keys() != simulator_jobs.sample(50, 2027, tmp_path).keys()
    sources = [name.partition(" ")[0] for name in jobs]
    assert {source: sources.count(source) for source in sources} == {"torchvision": 17, "timm": 17, "hf": 16}
    assert {job.training.optimizer for job in jobs.values() if job.training.mode == "train"} == {"adam", "sgd", "adamw"}
    assert {job.training.precision for job in jobs.values()} == {"fp32", "amp-bf16"}
    assert sum(job.training.mode == "infer" for job in jobs.values()) == 7


def _trace(rows: list[tuple[Action, int, int, int]]) -> Trace:
    """Return a trace of (action, bytes, block, address)."""
    action, size_bytes, block, address = zip(*rows, strict=True)
    return Trace.build({"action": action, "size_bytes": size_bytes, "block": block, "address": address})


def test_finds_first_difference() -> None:
    rows = [(Action.SEGMENT_ALLOC, 2 * MIB, -1, 1000), (Action.ALLOC, 512, 1, 1000), (Action.ALLOC, 512, 2, 1512)]
    moved = [(action, size_bytes, block, address + 64) for action, size_bytes, block, address in rows]
    assert simulator_jobs.first_difference(_trace(rows), _trace(moved)) is None
    assert simulator_jobs.first_difference(_trace(rows), _trace([*rows[:2], (Action.ALLOC, 512, 2, 2048)])) == 2
    assert simulator_jobs.first_difference(_trace(rows), _trace([*rows[:2], (Action.ALLOC, 513, 2, 1512)])) == 2
    assert simulator_jobs.first_difference(_trace(rows), _trace(rows[:2])) == 2
    assert simulator_jobs.first_difference(_trace(rows[:2]), _trace(rows)) == 2


def test_ignores_unwinding_after_out_of_memory() -> None:
    rows = [(Action.SEGMENT_ALLOC, 2 * MIB, -1, 1000), (Action.ALLOC, 512, 1, 1000), (Action.OOM, 4 * MIB, -1, 0)]
    unwound = [*rows[:2], (Action.OOM, 4 * MIB, -1, 77), (Action.FREE_REQUESTED, 512, 1, 1000)]
    assert simulator_jobs.first_difference(_trace(rows), _trace(unwound)) is None


def test_counts_failed_requests() -> None:
    rows = [(Action.ALLOC, 512, 0, 1000), (Action.OOM, 4 * MIB, -1, 0), (Action.FREE_COMPLETED, 512, 0, 1000)]
    trace = simulator_jobs.with_failed_requests(_trace(rows))
    assert Requests.of(trace).kind.tolist() == [RequestKind.MALLOC, RequestKind.TRY, RequestKind.FREE]
    assert Requests.of(trace).size_bytes.tolist() == [512, 4 * MIB, 0]


def _comparison(**options: object) -> simulator_jobs.Comparison:
    peaks = simulator_jobs.Peaks(allocated=5, reserved=7, retries=0, fits=True)
    row = simulator_jobs.Comparison("a job", "default", "no end", 100, peaks, peaks, True, 0, 3, 10, None)
    return replace(row, **options)  # type: ignore[arg-type]


def test_lists_every_difference_with_its_cause() -> None:
    other = simulator_jobs.Peaks(allocated=5, reserved=9, retries=0, fits=True)
    rows = [
        _comparison(),
        _comparison(simulated=other, survived=2, first="OOM of 4 B, conv"),
        _comparison(run=other, own_is_equal=False),
    ]
    lines = simulator_jobs.differences(rows)
    assert lines == [
        "a job; default; no end: reserved 7 -> 9; from OOM of 4 B, conv; the job made other requests",
        "a job; default; no end: reserved 9 -> 7; from None; THE SIMULATOR",
    ]
    assert _cells(simulator_jobs.table(rows)) == [
        *("`default`", "no end"),
        *("3", "3", "1", "3", "3", "3", "2", "2"),  # jobs, ran, equal: reserved, allocated, retries, ran, events, own requests
        *("+2 B (+28.57%)", "0", "3", "1"),  # retried, gave back, did without
    ]
    assert _cells(simulator_jobs.by_job(rows)) == ["a job", "3", "1", "1", "+2 B (+28.57%)"]


def _cells(markdown: str) -> list[str]:
    return [cell.strip() for cell in markdown.splitlines()[-1].split("|")[1:-1]]


@pytest.mark.usefixtures("needs_null_gpu")
def test_times_torch_on_requests_of_trace() -> None:
    rows = [(Action.ALLOC, 3 * MIB, 0, 1000), (Action.ALLOC, 700, 1, 5000), (Action.FREE_COMPLETED, 3 * MIB, 0, 1000)]
    trace = _trace(rows)
    requests = Requests.of(trace)
    assert simulator.raw_sequence(requests) == [("malloc", 0, 3 * MIB, 0), ("malloc", 1, 700, 0), ("free", 0)]
    timing = simulator.time_one(requests, "", 22 * MIB, repeats=2)
    assert timing.retries == play(requests).statistics.n_retries == 0
    assert min(timing.compiled, timing.peaks_only, timing.python, timing.torch) > 0


@pytest.mark.usefixtures("needs_null_gpu")
def test_rejects_timing_of_wrong_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests.of(_trace([(Action.ALLOC, 3 * MIB, 0, 1000)]))
    other = Requests.of(_trace([(Action.ALLOC, 30 * MIB, 0, 1000)]))
    monkeypatch.setattr(simulator, "raw_sequence", lambda _: [("malloc", 0, int(other.size_bytes[0]), 0)])
    with pytest.raises(SystemExit, match="differ"):
        simulator.time_one(requests, "", None, repeats=2)
