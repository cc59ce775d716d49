"""Plain English: phrases which readers stumbled over stay out of code, messages and documents."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What readers stumbled over, and what to write instead.
PLAIN = {
    r"(card|one|loop|nested) without (an )?end": "unlimited card, endless loop",
    r"\brooms\b": "packages, folders",
    r"\bthe face\b": "the public API",
    r"\bmakes? one true\b|\bmade true\b": "recalibrates it on your own runs",
    r"\b(which|that) is said\b|\bis said (below|in words|on stderr)\b|, is said,": "the result says so, is reported",
    r"\bwhat (is|was) said of\b|\bsaid of an?\b": "the prediction of, the remark on",
    r"\bis asked wrongly\b": "has a wrong table, is wrong",
    r"\blets none out\b|\bits checker refutes\b": "returns only plans that its checker accepts",
    r"\bby a twentieth\b": "by 5 %",
    r"\bhalf as far again\b": "widened by 50 %",
    r"\b(was|were|is|are|been|which is) at hand\b": "is available",
    r"\bto be had\b": "is available",
    r"\bHow right\b": "Accuracy",
    r"\bill-meant\b": "malicious",
    r"\bknows not\b": "does not know",
    r"\bstill runs, the allocator\b|\bon which it still runs\b": "the smallest card on which the job runs",
    r"\bno ?body foresaw\b": "an unexpected error",
    r"\bstays? true\b": "holds",
    r"\breturned a int\b": "returned an int",
}
ENDINGS = {".c", ".h", ".html", ".ipynb", ".js", ".lua", ".md", ".py", ".sh", ".svg", ".toml", ".txt", ".yaml", ".yml"}


def read_files() -> dict[str, str]:
    """Return the text of all files of the repository which people read, by path."""
    found = {}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ("build", "dist") and not name.startswith(".")]
        folders[:] = [name for name in folders if not name.endswith(".egg-info")]
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            if path.suffix in ENDINGS and path.is_file() and path != Path(__file__):
                found[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8", errors="replace")
    return found


def flattened(texts: Iterable[str]) -> str:
    """Return all texts as one, in lower case, with a single space between words, as `occurs` needs them."""
    return re.sub(r"[\s#*]+", " ", "\0".join(texts).lower())


def occurs(phrase: str, flat: str) -> bool:
    """Return whether a phrase may stand anywhere: true wherever `places` finds one, and much faster.

    Without word boundaries a pattern begins with a literal, which `re` finds without trying the pattern at each character.
    """
    return re.search(phrase.lower().replace(r"\b", ""), flat) is not None


def places(phrase: str, texts: dict[str, str]) -> list[str]:
    """Return where a phrase stands, also over the end of a line."""
    pattern = re.compile(phrase.replace(" ?", r"[\s#*]*").replace(" ", r"[\s#*]+"), re.IGNORECASE)
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()}"
        for name, text in texts.items()
        for found in pattern.finditer(text)
    ]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return read_files()


@pytest.fixture(scope="module")
def flat(texts: dict[str, str]) -> str:
    return flattened(texts.values())


@pytest.mark.parametrize("phrase", PLAIN)
def test_an_odd_phrase_is_not_written(phrase: str, texts: dict[str, str], flat: str) -> None:
    found = places(phrase, texts) if occurs(phrase, flat) else []
    assert found == [], f"write: {PLAIN[phrase]}"


def test_all_kinds_of_files_are_read(texts: dict[str, str]) -> None:
    assert {"README.md", "docs/commands.md", "vramcast/core/errors.py", "action.yml"} <= texts.keys()


def test_a_phrase_is_found_over_the_end_of_a_line() -> None:
    found = places(r"card without (an )?end", {"a.py": "# on a card without\n# an end"})
    assert found == ["a.py:1: card without\n# an end"]


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        (r"card without (an )?end", "# on a card without\n# an end"),
        (r"\bHow right\b", "**How** right it is"),
        (r"\bno ?body foresaw\b", "what NOBODY\t foresaw"),
        (r"\bby a twentieth\b|\bthe face\b", "at the end: the face"),
    ],
)
def test_the_quick_search_misses_no_place(phrase: str, text: str) -> None:
    assert places(phrase, {"a.md": text})
    assert occurs(phrase, flattened(["before", text, "after"]))
    assert not occurs(phrase, flattened(["before", "after"]))
