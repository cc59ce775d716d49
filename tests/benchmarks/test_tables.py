"""Tests of the benchmarks' Markdown tables."""

from __future__ import annotations

import pytest

from benchmarks import tables


def test_a_table_has_its_numbers_on_the_right() -> None:
    found = tables.table(["job", "runs", "s"], [("a", 1, "0.50"), ("b", "-", "")])
    assert found.splitlines() == ["| job | runs | s |", "|---|---:|---:|", "| a | 1 | 0.50 |", "| b | - |  |"]


@pytest.mark.parametrize(
    ("align", "marks"), [("l", "|---|---:|---:|---:|"), ("rrrl", "|---:|---:|---:|---|"), ("ll", "|---|---|---:|---:|")]
)
def test_columns_may_stand_on_either_side(align: str, marks: str) -> None:
    assert tables.heading(["a", "b", "c", "d"], align).splitlines() == ["| a | b | c | d |", marks]
