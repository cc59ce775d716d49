"""The value with which a condition goes on instead of leaving."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.tracer.values import loop_exits


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("while a > b:\n    f()", {1: True}),
        ("while not a:\n    f()", {1: False}),
        ("while (a and\n    b):\n    f()", {1: True, 2: True}),
        ("for x in y:\n    if a: break", {2: False}),
        ("for x in y:\n    if not (a < b): break", {2: True}),
        ("def f():\n    if a: return", {2: False}),
        ("def f(x):\n    if a: return x", {2: False}),
        ("def f(x):\n    if a: return g(x)", {}),  # it may take more than what follows
        ("for x in y:\n    if a:\n        g()\n        break", {}),
        ("for x in y:\n    if a: break\n    else: g()", {}),
        ("for x in y:\n    if a or not b: break", {}),  # unclear which part is read
        ("if a: raise ValueError", {}),
        ("if", {}),
    ],
)
def test_value_that_goes_on(tmp_path: Path, source: str, found: dict[int, bool]) -> None:
    file = tmp_path / "job.py"
    file.write_text(source)
    assert loop_exits._ends(str(file)) == found
