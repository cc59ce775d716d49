"""Text for a reader: what is cut is said, and nothing reaches a terminal that it would obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.text import encodable, one_line, printable, shorten, shown


@pytest.mark.parametrize(("text", "limit"), [("short", 5), ("x" * 1000, 90)])
def test_a_long_text_keeps_both_ends_and_says_how_much_is_cut(text: str, limit: int) -> None:
    found = shorten(text, limit)
    assert found == text or found == "x" * 60 + " [... 910 characters cut ...] " + "x" * 30


def test_a_wrong_value_is_shown_as_python_writes_it() -> None:
    assert shown("a") == "'a'"
    assert len(shown("9" * 5000)) < 120


@given(name=st.text(), limit=st.integers(2, 30))
def test_a_printable_name_is_not_longer_than_its_limit(name: str, limit: int) -> None:
    seen = printable(name, limit)
    assert len(seen) <= limit
    assert seen.isprintable()
    if name.isprintable() and len(name) <= limit:
        assert seen == name


def test_of_a_long_name_the_end_is_shown() -> None:
    assert printable("encoder.layers.11.attention", 12) == "…1.attention"


def test_control_codes_and_half_characters_are_marked() -> None:
    assert printable("a\x1b[31m\n\ud800b") == "a\ufffd[31m\ufffd\ufffdb"


@pytest.mark.parametrize(
    ("text", "line"),
    [("no answer", "no answer"), ("a \n\n\tb\x1b[0m  c\r\n", "a | b [0m c"), ("\n \x00", ""), ("x\u2028y", "x | y")],
)
def test_lines_become_one_of_words_that_a_terminal_can_print(text: str, line: str) -> None:
    assert one_line(text, 50, " | ") == line


@given(st.text(), st.integers(3, 30))
def test_one_line_is_printable_and_little_longer_than_its_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert line.isprintable()
    assert len(line) < limit + 40


def test_half_characters_become_question_marks() -> None:
    assert encodable("a\ud800b\n") == "a?b\n"
