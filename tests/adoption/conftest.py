"""Fixtures for adoptions: a history whose jobs are estimated without tracing, and the command."""

from __future__ import annotations

import csv
import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("xgboost")

from vramcast.estimates import run_examples
from vramcast.jobs.job import Job
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES

MIB = 1 << 20
COLUMNS = (
    *("id", "name", "user", "target", "batch", "gpu", "gpu_total_bytes", "torch", "driver"),
    *("process_bytes", "status", "censored", "seconds"),
)


def reserved_of(target: str) -> int:
    """Return the reserved peak of an invented job."""
    return (500 + 10 * (int(hashlib.sha256(target.encode()).hexdigest(), 16) % 300)) * MIB


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Return the list of jobs estimated so far, without tracing them."""
    jobs: list[Job] = []

    def simulated(job: Job) -> Example | str:
        jobs.append(job)
        if "broken" in (job.target or ""):
            return "cannot be estimated: JobError"
        size_bytes = reserved_of(job.target or "")
        features = {**dict.fromkeys(NAMES, 0.0), "card_gib": 80.0, "log_reserved": 30.0}
        return Example("", "", "", "a100-80gb", "", features, size_bytes, size_bytes, context=400 * MIB, tracer="nullgpu")

    monkeypatch.setattr(run_examples, "simulated", simulated)
    monkeypatch.setattr(run_examples, "cudnn_asked", lambda stack: "9.12")
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    return jobs


def written(path: Path, rows: int, *, models: int = 8, seed: int = 0, factor: float = 1.0, first: int = 0) -> str:
    """Write a history in our plain table and return its path."""
    chance = random.Random(seed)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for number in range(first, first + rows):
            target = f"torchvision:model{number % models}"
            peak = round(factor * reserved_of(target) * chance.uniform(0.98, 1.02)) + 450 * MIB
            row = {
                "id": number, "name": "job", "user": f"u{number % 3}", "target": target, "batch": "8x3x32x32",
                "gpu": "NVIDIA A100-SXM4-80GB", "gpu_total_bytes": 80 << 30, "torch": "2.11.0", "driver": "580",
                "process_bytes": peak, "status": "ok", "censored": "false", "seconds": 3600,
            }  # fmt: skip
            writer.writerow(row)
    return str(path)


@pytest.fixture
def history(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a history: `history(name, rows, models=, seed=, factor=, first=)`."""
    return lambda name, rows, **how: written(tmp_path / name, rows, **how)
