"""Scripts whose loops keep more memory in each step: line, bytes, the step that fills the card, the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.units import MIB
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.tracer.protocol.run_options import RunOptions

pytestmark = pytest.mark.integration

_SCRIPT = """
import collections
import torch
net = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
kept = {kept}
for step in range({steps}):
    y = net(torch.randn({rows}, 1024, device="cuda"))
    optimizer.zero_grad()
    y.mean().backward()
    optimizer.step()
    kept.append(y.detach())
"""
_SMALL_BYTES = 900 * MIB  # arbitrary: a card that is full after some hundred steps


@pytest.fixture
def script(tracer: Callable[[], Any], tmp_path: Path) -> Callable[..., Path]:
    def write(*, kept: str = "[]", steps: int = 100_000, rows: int = 512) -> Path:
        path = tmp_path / "train.py"
        path.write_text(_SCRIPT.format(kept=kept, steps=steps, rows=rows))
        return path

    return write


def _estimate(path: Path, **options: Any) -> Estimate:
    given = {"budget_s": 5.0, "memory": _SMALL_BYTES, **options}
    return Estimator("rtx4060", "nullgpu").command([str(path)], **given)


@pytest.mark.parametrize("rows", [512, pytest.param(1800, marks=pytest.mark.release)])
def test_predicts_step_that_fills_card(script: Callable[..., Path], tracer: Callable[[], Any], rows: int) -> None:
    """A segment holds ten blocks of 2 MiB, or two of 7 MiB, whose neighbors are too small."""
    path = script(rows=rows)
    found = _estimate(path)
    assert found.growth is not None
    assert found.job.command is not None
    assert (found.growth.bytes_per_step, found.growth.where) == (rows * 4096, f"{path}:8")
    assert (found.growth.steps_known, found.verdict.value) == (100_000, "does not fit")
    job = replace(found.job.with_training(steps=10_000), command=replace(found.job.command, until="steps", budget_s=None))
    died = tracer().observe(job, RunOptions(context_bytes=found.context.bytes), timeout_s=600)
    assert died.out_of_memory
    assert died.steps + 1 == found.growth.full_at_step


def test_growth_of_a_shorter_training_is_seen_to_its_end(script: Callable[..., Path]) -> None:
    found = _estimate(script(steps=200), memory=8 << 30, budget_s=30.0)
    assert found.growth is not None
    assert (found.growth.steps_known, found.verdict.value) == (200, "fits")
    assert found.allocated > 200 * 2 * MIB
    assert found.growth.where.endswith("train.py:8")


def test_growth_beyond_the_budget_is_uncertain(script: Callable[..., Path]) -> None:
    found = _estimate(script(steps=200), memory=8 << 30, budget_s=0.0)
    assert found.verdict.value == "uncertain"
    assert "train.py:8" in found.verdict.reason


@pytest.mark.parametrize("kept", ["collections.deque(maxlen=3)", "collections.deque(maxlen=50)"])
def test_bounded_memory_is_no_growth(script: Callable[..., Path], kept: str) -> None:
    assert _estimate(script(kept=kept), memory=8 << 30).growth is None


def test_answer_is_independent_of_step_budget(script: Callable[..., Path]) -> None:
    path = script()
    fast, slow = (_estimate(path, memory=8 << 30, budget_s=budget_s) for budget_s in (3.0, 0.2))
    for found in (fast, slow):
        assert found.growth is not None
        assert (found.growth.bytes_per_step, found.growth.steps_seen) == (2 * MIB, 128)
        assert (found.growth.full_at_step, found.verdict.value) == (fast.growth and fast.growth.full_at_step, "does not fit")
