"""Tests of the programs whose need changes late: their table, and the judgement of answers."""

from __future__ import annotations

import ast
import json

import pytest

from benchmarks.hostile.late_programs import PROGRAMS, TRUTHS, Answer, Truth, early, judged, named_lines, right_lines
from benchmarks.hostile.late_table import GIB, LATE, REVIEWED, Late

LARGE, SMALL = Truth(fits=False, low=10 * GIB, high=12 * GIB), Truth(fits=True, low=GIB, high=GIB)


def test_every_program_is_in_the_table():
    files = {path.relative_to(PROGRAMS).as_posix() for path in PROGRAMS.rglob("*.py")}
    assert files == {late.name for late in LATE}


def test_every_program_has_a_stored_truth():
    stored = json.loads(TRUTHS.read_text(encoding="utf-8"))
    assert set(stored) == {late.name for late in (*LATE, *REVIEWED)}


@pytest.mark.parametrize("late", LATE, ids=lambda late: late.name)
def test_program_has_its_lines_and_its_early_form(late):
    text = (PROGRAMS / late.name).read_text(encoding="utf-8")
    ast.parse(early(late, text))
    assert bool(right_lines(late, text)) != late.is_harmless


@pytest.mark.parametrize("late", LATE, ids=lambda late: late.name)
def test_harmless_programs_fit(late):
    stored = json.loads(TRUTHS.read_text(encoding="utf-8"))
    assert stored[late.name]["fits"] or not late.is_harmless


def _answer(verdict, size=GIB, **said):
    return Answer({"verdict": {"value": verdict, "reason": ""}, "peaks": {"process": size}, **said}, 0, 1.0)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "job.py"
    path.write_text("a = 1\nif step == 7:\n    grow()\n")
    return path


@pytest.mark.parametrize(
    ("answer", "truth", "judgement"),
    [
        (_answer("fits"), LARGE, "UNSAFE"),
        (_answer("fits"), SMALL, "OK"),
        (_answer("fits", GIB // 2), SMALL, "OK, number off"),
        (_answer("does not fit", 11 * GIB), LARGE, "OK"),
        (_answer("does not fit", 20 * GIB), LARGE, "OK, number off"),
        (_answer("does not fit", 20 * GIB), SMALL, "FALSE ALARM"),
        (_answer("uncertain", not_reached=["a branch (job.py:2)"]), LARGE, "uncertain(line 2)"),
        (_answer("uncertain", not_reached=["a branch (job.py:1)"]), LARGE, "uncertain, other line (1)"),
        (_answer("uncertain"), LARGE, "uncertain, other line (none)"),
        (Answer({}, None, 120.0), LARGE, "NO ANSWER"),
        (Answer({}, 2, 1.0), SMALL, "NO ANSWER"),
    ],
)
def test_judgement(program, answer, truth, judgement):
    assert judged(Late("job.py", "branch", ("if step == 7",)), truth, answer, program) == judgement


def test_doubt_about_a_harmless_program_is_a_false_alarm(program):
    assert judged(Late("job.py", "harmless"), SMALL, _answer("uncertain", not_reached=["job.py:2"]), program) == "FALSE ALARM"


def test_named_lines_are_those_of_the_program():
    said = {"not_reached": ["job.py:12, other.py:3"], "verdict": {"reason": "the branch in line 4"}, "target": "job.py:99"}
    assert named_lines(said, "job.py") == [4, 12]
