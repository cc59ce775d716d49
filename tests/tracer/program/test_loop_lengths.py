"""The number of steps of the loops around a training step."""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from vramcast.tracer.program.loop_lengths import steps_around

_EPOCHS = """
kept = []
for epoch in range(6):
    {} = []
    for x in data:
        step()
        kept.append(x)
"""
_FUNCTION = """
kept = []
def train(kept):
    {} = []
    for x in data:
        step()
        kept.append(x)
for epoch in range(6):
    train(kept)
"""
# A step is `step()`; it ends the program by raising after the number of steps at which a loop is examined.
CASES: list[tuple[str, str, int, int | None]] = [
    ("range", "for i in range(500):\n    step()", 8, 500),
    ("range from and by", "for i in range(10, 510, 5):\n    step()", 8, 100),
    ("a variable", "n = 70\nfor i in range(n):\n    step()", 8, 70),
    ("an attribute", "for i in range(args.steps):\n    step()", 8, 90),
    ("a sum", "for i in range(2 * args.steps + 1):\n    step()", 8, 181),
    ("a list", "for x in data:\n    step()", 8, 40),
    ("enumerate", "for i, x in enumerate(data):\n    step()", 8, 40),
    ("a bar", "for i, x in enumerate(tqdm(data)):\n    step()", 8, 40),
    ("zip", "for a, b in zip(data, range(30)):\n    step()", 8, 30),
    ("epochs", "for epoch in range(6):\n    for x in data:\n        step()", 8, 240),
    ("a function", "def train():\n    for x in data:\n        step()\nfor epoch in range(6):\n    train()", 8, 240),
    ("accumulation", "for i in range(400):\n    if i % 4 == 3:\n        step()", 8, 100),
    ("two steps an iteration", "for i in range(300):\n    step()\n    step()", 8, 600),
    ("accumulation, no index", "for x in data:\n    if True:\n        step()", 8, None),
    ("while", "while True:\n    step()", 8, None),
    ("while around", "while True:\n    for x in data:\n        step()", 8, None),
    ("break", "for i in range(500):\n    step()\n    if i > 400:\n        break", 8, None),
    ("the break of another loop", "for i in range(500):\n    step()\n    for j in range(3):\n        break", 8, 500),
    ("return", "def f():\n    for i in range(500):\n        step()\n        if i > 400:\n            return\nf()", 8, None),
    ("no length", "for x in iter(data.__iter__()):\n    step()", 8, None),
    ("a generator", "for x in (x for x in data):\n    step()", 8, None),
    ("no loop", "for i in [1]:\n    pass\nstep()", 1, None),
    ("a new list each epoch", _EPOCHS.format("kept"), 8, 40),
    ("a new list of something else", _EPOCHS.format("seen"), 8, 240),
    ("a list of a function", _FUNCTION.format("kept"), 8, 40),
    ("a list of something else in a function", _FUNCTION.format("seen"), 8, 240),
]  # fmt: skip


class Enough(Exception):
    """The wanted number of steps is reached."""


@pytest.mark.parametrize(("text", "made", "steps"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_steps_around(text: str, made: int, steps: int | None) -> None:
    assert _steps(text, made) == steps


def _steps(text: str, made: int, **names: Any) -> int | None:
    found: list[int | None] = []
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if done == made:
            # The frame of the program: like an optimizer's, the first that is neither torch's nor ours.
            found.append(steps_around(sys._getframe(1), done))
            raise Enough

    file = f"program-{abs(hash(text))}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {"step": step, "data": list(range(40)), "args": SimpleNamespace(steps=90), "tqdm": list, **names}

    def run() -> None:
        with contextlib.suppress(Enough):
            exec(compile(text, file, "exec"), scope)

    program = threading.Thread(target=run)  # a thread's stack has no loops of a test runner
    program.start()
    program.join()
    return found[0]


def test_raising_attribute_is_unknown() -> None:
    class Loader:
        def __len__(self) -> int:
            raise TypeError("an iterable data set")

        def __iter__(self) -> Any:
            return iter(range(40))

    assert _steps("for x in loader:\n    step()", 8, loader=Loader()) is None


def test_trainer_reports_its_steps() -> None:
    # spec: transformers.Trainer
    kind = type("Trainer", (), {"__module__": "transformers.trainer", "train": _train})
    trainer = kind()
    trainer.state = SimpleNamespace(max_steps=1234)
    assert trainer.train() == 1234


def _train(self: Any) -> int | None:
    while True:
        return steps_around(sys._getframe(), 8)
