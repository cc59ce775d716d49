"""Detection of possible evaluations, from the source of a training step's callers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from vramcast.tracer.program import evaluations
from vramcast.tracer.program.evaluations import may_evaluate

LOOP = "def train(step):\n    return step()\n"


def frame_of(file: Path, source: str) -> FrameType:
    """Return a frame called from a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    names: dict[str, Any] = {}
    exec(compile(source, str(file), "exec"), names)
    found: FrameType = names["train"](lambda: sys._getframe(1))
    return found


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the modules of the tests."""
    monkeypatch.setattr(evaluations, "_modules", lambda: [])


def only(frame: FrameType) -> Any:
    return type("Frame", (), {"f_code": frame.f_code, "f_back": None})()


@pytest.mark.parametrize(
    ("more", "expected"),
    [("", False), ("with torch.no_grad(): pass", True), ("model.eval()", True), ("val_loader = 1", True), ("validate()", True)],
)
def test_word_for_evaluation_is_enough(tmp_path: Path, more: str, expected: bool) -> None:
    (tmp_path / "x").mkdir()
    frame = only(frame_of(tmp_path / "x" / "train.py", LOOP))
    (tmp_path / "x" / "train.py").write_text(f"{LOOP}{more}\n")
    assert may_evaluate(frame) is expected


def test_trainer_may_always_evaluate(tmp_path: Path) -> None:
    assert may_evaluate(only(frame_of(tmp_path / "site-packages" / "trainer" / "loop.py", LOOP)))
    assert not may_evaluate(only(frame_of(tmp_path / "site-packages" / "torch" / "optim.py", LOOP)))


def test_module_of_job_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics.py").write_text("def evaluate(): ...\n")
    frame = only(frame_of(tmp_path / "train.py", LOOP))
    assert not may_evaluate(frame)
    monkeypatch.setattr(evaluations, "_modules", lambda: [str(tmp_path / "metrics.py")])
    assert may_evaluate(frame)


def test_code_from_text_may_evaluate() -> None:
    names: dict[str, Any] = {}
    exec(compile(LOOP, "<string>", "exec"), names)
    assert may_evaluate(only(names["train"](lambda: sys._getframe(1))))
