"""Tests of a sample of the jobs in `make golden`, and of the comparison itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import golden
from vramcast.core.releases import REFERENCE

SAMPLE = ("resnet18", "replay-resnet18", "gpt2-checkpointing", "lstm", "oom-mlp", "no-kernels", "fake-moe", "script-branches")


def test_jobs_and_results_correspond() -> None:
    assert json.loads(golden.RESULTS.read_text()).keys() == golden.jobs().keys()
    assert len(golden.jobs()) >= 60


def test_names_difference_by_path() -> None:
    was: dict[str, Any] = {"peaks": {"reserved": 1}, "unknown_calls": []}
    assert golden.differences("job", was, was) == []
    assert golden.differences("job", was, {"peaks": {"reserved": 2}, "unknown_calls": []}) == [
        "job.peaks.reserved: was 1, is 2"
    ]


@pytest.mark.usefixtures("needs_null_gpu", "tracer")
def test_sample_equals_stored_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: Any) -> None:
    for package in ("torchvision", "transformers"):
        need(package)
    if not need("torch").__version__.startswith(REFERENCE):
        pytest.skip(f"the golden results are from torch {REFERENCE}")
    monkeypatch.chdir(golden.ROOT)
    stored = json.loads(golden.RESULTS.read_text())
    for name in SAMPLE:
        found = json.loads(json.dumps(golden.result_of(name, golden.jobs()[name], tmp_path)))
        moved = [line for line in golden.differences(name, stored[name], found) if f".{golden.MAY_MOVE}." not in line]
        assert moved == []
