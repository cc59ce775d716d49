"""Plain English: phrases which readers stumbled over stay out of code, messages and documents."""

from __future__ import annotations

import re
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
    files = [path for path in ROOT.rglob("*") if path.suffix in ENDINGS and path.is_file() and path != Path(__file__)]
    hidden = {"build", "dist"}
    names = {path: path.relative_to(ROOT) for path in files}
    return {
        str(name): path.read_text(encoding="utf-8", errors="replace")
        for path, name in names.items()
        if not hidden & set(name.parts) and not any(part.startswith(".") or part.endswith(".egg-info") for part in name.parts)
    }


def places(phrase: str, texts: dict[str, str]) -> list[str]:
    """Return where a phrase stands, also over the end of a line."""
    pattern = re.compile(phrase.replace(" ", r"[\s#*]+"), re.IGNORECASE)
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()}"
        for name, text in texts.items()
        for found in pattern.finditer(text)
    ]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return read_files()


@pytest.mark.parametrize("phrase", PLAIN)
def test_an_odd_phrase_is_not_written(phrase: str, texts: dict[str, str]) -> None:
    assert places(phrase, texts) == [], f"write: {PLAIN[phrase]}"


def test_all_kinds_of_files_are_read(texts: dict[str, str]) -> None:
    assert {"README.md", "docs/commands.md", "vramcast/errors.py", "action.yml"} <= texts.keys()


def test_a_phrase_is_found_over_the_end_of_a_line() -> None:
    found = places(r"card without (an )?end", {"a.py": "# on a card without\n# an end"})
    assert found == ["a.py:1: card without\n# an end"]
