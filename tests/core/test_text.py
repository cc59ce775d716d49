"""Shortened and printable text; no control codes reach a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.text import encodable, one_line, printable, shorten, shown


@pytest.mark.parametrize(("text", "limit"), [("short", 5), ("x" * 1000, 90)])
def test_shorten_keeps_both_ends(text: str, limit: int) -> None:
    found = shorten(text, limit)
    assert found == text or found == "x" * 60 + " [... 910 characters cut ...] " + "x" * 30


def test_shown_uses_repr() -> None:
    assert shown("a") == "'a'"
    assert len(shown("9" * 5000)) < 120


@given(name=st.text(), limit=st.integers(2, 30))
def test_printable_respects_limit(name: str, limit: int) -> None:
    seen = printable(name, limit)
    assert len(seen) <= limit
    assert seen.isprintable()
    if name.isprintable() and len(name) <= limit:
        assert seen == name


def test_printable_keeps_end_of_long_name() -> None:
    assert printable("encoder.layers.11.attention", 12) == "…1.attention"


def test_printable_marks_control_codes() -> None:
    assert printable("a\x1b[31m\n\ud800b") == "a\ufffd[31m\ufffd\ufffdb"


@pytest.mark.parametrize(
    ("text", "line"),
    [("no answer", "no answer"), ("a \n\n\tb\x1b[0m  c\r\n", "a | b [0m c"), ("\n \x00", ""), ("x\u2028y", "x | y")],
)
def test_one_line_joins_lines(text: str, line: str) -> None:
    assert one_line(text, 50, " | ") == line


@given(st.text(), st.integers(3, 30))
def test_one_line_is_printable_and_short(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert line.isprintable()
    assert len(line) < limit + 40


def test_encodable_replaces_surrogates() -> None:
    assert encodable("a\ud800b\n") == "a?b\n"
