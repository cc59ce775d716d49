"""Tests of the memory of 8-bit and 4-bit optimizers and weights against hand arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.surveys import ecosystem
from benchmarks.surveys.ecosystem import JOBS, Ecosystem, rounded


def test_rounds_up_each_tensor() -> None:
    assert rounded(1, 512, 513) == 512 + 512 + 1024


def test_names_missing_packages_in_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ecosystem, "JOBS", (Ecosystem("a job", ("no_such_package",), "1 byte", 1, ""),))
    assert list(ecosystem.rows())[1:] == ["| a job | 1 byte | 1 | needs no_such_package |  |"]


@pytest.mark.parametrize("job", JOBS, ids=[job.name for job in JOBS])
def test_equals_hand_arithmetic(job: Ecosystem, tracer: Callable[[], Any]) -> None:
    if job.missing:
        pytest.skip(f"needs {job.missing}")
    assert ecosystem.measured(job) == job.by_hand
