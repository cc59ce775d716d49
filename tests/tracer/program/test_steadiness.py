"""Equal steps, and the step at which a loop may do something new."""

from __future__ import annotations

import argparse
import contextlib
import linecache
import math
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")  # here, or the first test would pay for it

from vramcast.tracer.program import steadiness
from vramcast.tracer.program.steadiness import Steadiness, next_change
from vramcast.tracer.protocol.run_options import LEAST_WATCHED

_DONE = 100
# A step is `step()`; the loop is examined after a hundred of them.
CASES: list[tuple[str, str, float | None]] = [
    ("no condition", "for i in range(5000):\n    step()", 4900),
    ("endless", "while True:\n    step()", math.inf),
    ("a period that came", "for i in range(5000):\n    step()\n    if i % 50 == 0:\n        print()", 4900),
    ("a period ahead", "for i in range(5000):\n    step()\n    if i % 1000 == 0:\n        f()", 911),
    ("a period of a setting", "for i in range(5000):\n    step()\n    if i % args.every == 0:\n        f()", 911),
    ("a period by a product", "for i in range(5000):\n    step()\n    if i % (40 * 10) == 0 and i > 2:\n        f()", 305),
    ("a threshold in the loop's head", "i = 0\nwhile i < 3000:\n    step()\n    i += 1", 2931),
    (
        "a call in a turn ahead",
        "for i in range(5000):\n    step()\n    if i % 1000 == 0 and args.every:\n        if due():\n            f()",
        911,
    ),
    ("a call until a turn", "for i in range(5000):\n    step()\n    if i < 1000:\n        if due():\n            f()", None),
    ("a call after a turn", "for i in range(5000):\n    step()\n    if i % 50 == 0:\n        if due():\n            f()", None),
    ("a choice of a number", "for i in range(5000):\n    step()\n    done = 2 * done if done == 0.5 else 1 - done", 4900),
    ("a choice of a call", "for i in range(5000):\n    step()\n    done = f() if done == 0.5 else 1", None),
    ("a setting that is off", "for i in range(5000):\n    step()\n    if flag:\n        f()", 4900),
    (
        "a setting that the loop sets",
        "for i in range(5000):\n    step()\n    if args.off:\n        f()\n    args.off = i > 300",
        None,
    ),
    ("a short circuit", "for i in range(5000):\n    step()\n    i % 1000 == 0 and f()", 911),
    ("a function", "def one(i):\n    step()\n    if i % 1000 == 0:\n        f()\nfor i in range(5000):\n    one(i)", 911),
    ("a flag that the loop sets", "for i in range(5000):\n    step()\n    if done:\n        f()\n    done = i > 300", None),
    ("a call", "for i in range(5000):\n    step()\n    if due():\n        f()", None),
    ("an attribute of a state", "for i in range(5000):\n    step()\n    if state.step % 10 == 0:\n        f()", None),
    (
        "an epoch",
        "for epoch in range(60):\n    for i in range(5000):\n        step()\n        if epoch % 2:\n            f()",
        None,
    ),
    ("a break", "for i in range(5000):\n    step()\n    if i > 4000:\n        break", None),
    ("no loop", "[step() for i in range(5000)]", None),
]

# Each pass over a loader of 400 batches ends after the third one, with a step each; `loader` says so on its own.
_PASSES = "for epoch in range(90):\n    for i, x in enumerate(loader):\n        step()\n"
CUT_CASES: list[tuple[str, str, float | None]] = [
    ("no condition", _PASSES, 170),
    ("a flag without an evaluation", _PASSES + "        if state.syncs:\n            due()", 170),
    ("an evaluation that came", _PASSES + "    if epoch % 5 == 0:\n        evaluate()", 170),
    ("an evaluation ahead", _PASSES + "    if epoch % 40 == 0:\n        evaluate()", 27),
    ("a setting that is off", _PASSES + "    if args.prompts is not None and epoch % 5 == 0:\n        validate()", 170),
    (
        "an evaluation that is off, in an unknown condition",
        _PASSES + "    if state.is_main:\n        if args.prompts is not None and epoch % 5 == 0:\n            validate()",
        170,
    ),
    (
        "an evaluation in an unknown condition",
        _PASSES + "    if state.is_main:\n        if epoch % 5 == 0:\n            evaluate()",
        None,
    ),
    ("a new container in each pass", _PASSES + "        kept.append(x)\n    kept = []", 170),
    ("an unknown evaluation", _PASSES + "    if due():\n        evaluate()", None),
    ("an end ahead", _PASSES + "        if made() > 120:\n            break", None),
    ("an end by counting", "made = 0\n" + _PASSES + "        made += 1\n        if made > 150:\n            break", 52),
    ("a place that no variable shows", _PASSES.replace("i, x in enumerate(loader)", "x in loader"), None),
]


@pytest.mark.parametrize(("source", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_next_change(source: str, expected: float | None) -> None:
    _check(source, expected, is_cut=False)


@pytest.mark.parametrize(("source", "expected"), [case[1:] for case in CUT_CASES], ids=[case[0] for case in CUT_CASES])
def test_next_change_of_passes_that_are_cut_short(source: str, expected: float | None) -> None:
    _check(source, expected, is_cut=True)


def test_cut_passes_of_a_library_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steadiness, "is_library", lambda file: True)
    _check(_PASSES, None, is_cut=True)


class _Loader:
    """A data loader whose passes are cut short."""

    def __len__(self) -> int:
        return 400

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def _check(source: str, expected: float | None, *, is_cut: bool) -> None:
    found: list[float | None] = []
    made = 0

    def step() -> None:
        nonlocal made
        made += 1
        if made == _DONE:
            found.append(next_change(sys._getframe(1), _DONE, is_cut=is_cut))
            raise KeyboardInterrupt

    name = f"program-{id(source)}.py"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    names: dict[str, Any] = {
        "step": step,
        "args": argparse.Namespace(every=1000, prompts=None, off=False),
        "flag": False,
        "done": False,
    }
    names |= {
        "f": lambda: None,
        "due": lambda: False,
        "state": SimpleNamespace(step=3, syncs=True, is_main=True),
        "print": lambda: None,
    }
    names |= {"loader": _Loader(), "evaluate": lambda: None, "made": lambda: 3, "kept": []}

    def run() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            exec(compile(source, name, "exec"), names)

    thread = threading.Thread(target=run)  # pytest's own frames have loops
    thread.start()
    thread.join()
    assert found[0] == (None if expected is None else pytest.approx(expected, abs=12))


@pytest.mark.parametrize(("events", "wanted"), [(10, LEAST_WATCHED), (3_000, 20), (30_000, 8)])
def test_steps_are_compared_by_events_and_bytes(events: int, wanted: int) -> None:
    totals = iter([(events * n, 100 * n, 7, 20) for n in range(1, wanted + 2)] + [(10**6, 9_000, 7, 20)])
    compared = Steadiness(lambda: next(totals))
    asked = [compared.step() for _ in range(wanted + 1)]
    assert (asked.count(True), asked[-1], compared.equal) == (1, True, wanted)
    assert not compared.step()
    assert compared.equal == 0
