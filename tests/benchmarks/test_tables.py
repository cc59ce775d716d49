"""Tests of the benchmarks' Markdown tables."""

from __future__ import annotations

import pytest

from benchmarks import tables


def test_aligns_numbers_right() -> None:
    found = tables.table(["job", "runs", "s"], [("a", 1, "0.50"), ("b", "-", "")])
    assert found.splitlines() == ["| job | runs | s |", "|---|---:|---:|", "| a | 1 | 0.50 |", "| b | - |  |"]


@pytest.mark.parametrize(
    ("align", "marks"), [("l", "|---|---:|---:|---:|"), ("rrrl", "|---:|---:|---:|---|"), ("ll", "|---|---|---:|---:|")]
)
def test_aligns_columns_on_either_side(align: str, marks: str) -> None:
    assert tables.heading(["a", "b", "c", "d"], align).splitlines() == ["| a | b | c | d |", marks]
