"""The prose linter: what it reads, and that each of its rules can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose.__main__ import Text, enabled_checks, findings, rates_of, tracked
from tests.prose.passages import Kind, Passage, passages_of
from tests.prose.style import RATES, is_free_relative


def read(tmp_path: Path, name: str, text: str) -> list[Passage]:
    (tmp_path / name).write_text(text)
    return list(passages_of(tmp_path, name))


def messages(text: str) -> list[tuple[int, str]]:
    return list(Text([Passage("a.md", 1, Kind.PAGE, text)]).findings(enabled_checks(), ()))


def test_reads_the_parts_of_a_python_file(tmp_path: Path) -> None:
    code = 'x = f"the batch {1} is far too large"\nkey = "two words"\n'
    text = f'"""A module.\n\n    >>> example(1)\n"""\n# A comment\n# of two lines.\n{code}'
    found = [(passage.kind, passage.line, passage.text.strip()) for passage in read(tmp_path, "a.py", text)]
    assert sorted(found) == [
        (Kind.COMMENT, 5, "A comment\nof two lines."),
        (Kind.DOCSTRING, 1, "A module."),
        (Kind.MESSAGE, 7, "the batch CODE is far too large"),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.c", "int x; /* read\n * here */"),
        ("a.sh", "#!/bin/sh\n# read here"),
        ("a.lua", "x = 1 -- read here"),
        ("a.toml", "# read here\n"),
    ],
)
def test_reads_comments(tmp_path: Path, name: str, text: str) -> None:
    (passage,) = read(tmp_path, name, text)
    assert (passage.kind, " ".join(passage.text.split())) == (Kind.COMMENT, "read here")


def test_leaves_code_and_addresses_out(tmp_path: Path) -> None:
    (passage,) = read(tmp_path, "a.md", "See `so many`:\n\n```sh\nso many\n```\n\n[here](so-many.md) <https://so.many>\n")
    assert messages(passage.text) == []


def test_finds_a_phrase_over_the_end_of_a_line() -> None:
    assert messages("A worker is\n  told its number.") == [
        (1, "'is told': write the job, field or user receives, reads or sees it.")
    ]


@pytest.mark.parametrize(
    "text", ["This is a very good card.", "It stays true for ever.", "An embarassing card: a beside the point."]
)
def test_finds_words_of_both_styles(text: str) -> None:
    assert messages(text)


@pytest.mark.parametrize("text", ["a job which runs", "the bytes (of it) which remain"])
def test_counts_a_restrictive_which(text: str) -> None:
    assert RATES["which"].search(text)


@pytest.mark.parametrize(
    "text", ["a job, which runs", "the card on which it runs", "It says which card. Which one?", "whichever"]
)
def test_leaves_other_uses_of_which(text: str) -> None:
    assert RATES["which"].search(text) is None


def test_rates_are_per_thousand_words() -> None:
    passages = [Passage("a.md", 1, Kind.PAGE, "a job which runs " + "word " * 496)]
    assert rates_of(passages)["which"] == 2.0


@pytest.mark.parametrize(
    ("text", "found"), [("What a job needs.", True), ("Return what a job needs.", False), ("Whether it fits.", True)]
)
def test_rejects_docstrings_that_are_relative_clauses(text: str, found: bool) -> None:
    assert is_free_relative(Passage("a.py", 1, Kind.DOCSTRING, text)) is found


def test_names_file_and_line(tmp_path: Path) -> None:
    passages = read(tmp_path, "a.md", "A good line.\n\nWhoever reads it.\n")
    assert list(findings(passages, enabled_checks())) == ["a.md:3: 'Whoever': write the user, the caller."]


@pytest.mark.integration
def test_reads_all_kinds_of_files() -> None:
    assert {"README.md", "docs/commands.md", "vramcast/core/errors.py", "simulator/csrc/caching.c"} <= set(tracked())
