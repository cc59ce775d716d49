"""Detection of numbers that a program only shows, by the place of the call in its source."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.tracer.values.shown_numbers import is_only_shown


@pytest.fixture
def shown_reads(tmp_path: Path) -> Callable[[str], list[bool]]:
    """Return a function that runs a program and finds, for each call of `read` in it, whether the value is only shown."""

    def run(text: str) -> list[bool]:
        found: list[bool] = []

        def read(x: float = 0.5) -> float:
            frame: Any = inspect.currentframe()
            found.append(is_only_shown(frame.f_back.f_code, frame.f_back.f_lasti))
            return x

        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(text))
        exec(compile(path.read_text(), str(path), "exec"), {"read": read, "losses": [], "log": print})
        return found

    return run


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print(read())", [True]),
        ("print('loss', 100 * read() / 3, (read(), 1))", [True, True]),
        ("log(f'{read():.3f}')", [True]),
        ("text = f'{read():.3f}'", [True]),
        ("losses.append(read())", [True]),
        ("losses.append(round(read(), 2))", [True]),
        ("x = read()", [False]),
        ("total = 0.0\ntotal += read()", [False]),
        ("if read() < 1: pass", [False]),
        ("print('done') if read() < 1 else None", [False]),
        ("print(read() < 1)", [False]),
        ("print(len([0] * int(read())))", [False]),
        ("range(int(read())); print(read())", [False, True]),
    ],
)
def test_recognizes_shown_calls(shown_reads: Callable[[str], list[bool]], text: str, expected: list[bool]) -> None:
    assert shown_reads(text) == expected


def test_code_without_source_shows_nothing() -> None:
    code = compile("print(1)", "<string>", "exec")
    assert not is_only_shown(code, 2)
    assert not is_only_shown(code, 10**6)
