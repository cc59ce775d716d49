"""Detection of possible evaluations, from the source of a training step's callers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from vramcast.tracer.program import evaluations
from vramcast.tracer.program.evaluations import evaluates_within, may_evaluate

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


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("step()", False),
        ("step(); validate()", False),  # it was observed
        ("step()\n        if i % 100 == 0: log(samples)", False),
        ("step()\n        if i % 100 == 0: validate()", True),
        ("step()\n        if i % eval_every == 0: run(1)", True),
        ("step()\n        if i % 100 == 0: runValLoop()", True),
    ],
)
def test_condition_in_loop_may_evaluate(tmp_path: Path, body: str, expected: bool) -> None:
    file, found = tmp_path / "train.py", []

    def step() -> None:
        frame: Any = sys._getframe(1)
        alone = SimpleNamespace(f_code=frame.f_code, f_lineno=frame.f_lineno, f_locals=frame.f_locals, f_back=None)
        found.append(evaluates_within(cast(FrameType, alone)))

    file.write_text(f"for i in range(1, 2):\n        {body}\n")
    names = dict.fromkeys(("validate", "log", "run", "runValLoop"), print) | {"step": step, "eval_every": 9, "samples": 1}
    exec(compile(file.read_text(), str(file), "exec"), names)
    assert found == [expected]


def test_trainer_says_whether_it_evaluates() -> None:
    kind = type("Trainer", (), {"__module__": "transformers.trainer"})
    for strategy, expected in (("no", False), ("steps", True)):
        trainer = kind()
        trainer.args = SimpleNamespace(eval_strategy=SimpleNamespace(value=strategy))
        code = SimpleNamespace(co_filename="/trainer.py")
        frame = SimpleNamespace(f_locals={"self": trainer}, f_code=code, f_back=None)
        assert evaluates_within(cast(FrameType, frame)) is expected
