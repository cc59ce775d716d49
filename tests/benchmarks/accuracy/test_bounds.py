"""Sources held out of the artifact that scores them, and peaks between two ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.accuracy import bounds
from vramcast.core.units import GIB, MIB
from vramcast.learner.examples import Example
from vramcast.learner.traits import ALONE

TRAITS = {"operators": "convolution", "share": "much", "mode": "training"}


def example(name: str, number: int = 0, excess: int = 0, **values: Any) -> Example:
    named: dict[str, Any] = {"reserved": 4 * GIB, "measured_reserved": 4 * GIB + excess, "traits": TRAITS, **values}
    return Example(f"{name} {number}", f"{name} {number}", "cnn", "rtx3060", name, {}, allocated=3 * GIB, **named)


@pytest.mark.parametrize(
    ("name", "source"),
    [("xmem xmem 3", "xmem"), ("further further 0", "xmem"), ("golf 00,", "golf"), ("tabled golf", "golf"), ("edges", "edges")],
)
def test_project_that_published_runs_is_one_source(name: str, source: str) -> None:
    assert bounds.source_of(example(name)) == source


def test_source_is_scored_by_others_alone() -> None:
    near = [example("near", number) for number in range(20)]
    far = [example("far", number, 512 * MIB) for number in range(20)]
    rows = {str(cells[0]): cells for cells in bounds.by_source([*near, *far])}
    assert list(rows) == ["far", "far: convolutions in training", "near", "near: convolutions in training"]
    assert len({len(cells) for cells in rows.values()} | {len(bounds._BY_SOURCE)}) == 1
    assert rows["far"][1:] == [20, 20, 0, "0.0 %", "-11.1 %", "0.0 %", "-11.1 %", "95 %", "0.0 %", "-11.1 %"]
    assert rows["near"][1:] == [20, 20, 0, "100.0 %", "12.5 %", "100.0 %", "12.5 %", "95 %", "100.0 %", "12.5 %"]


def test_few_models_promise_less_and_twins_are_left_out() -> None:
    twin = replace(example("near"), id="near 0 alone", traits={**TRAITS, "cudnns": ALONE})
    rows = list(bounds.by_source([example("near"), twin, *(example("far", number) for number in range(4))]))
    assert [cells[:2] + cells[8:9] for cells in rows if cells[0] in ("near", "far")] == [
        ["far", 4, "50 %"],
        ["near", 1, "80 %"],
    ]


def test_peak_between_two_ends_is_judged_at_each() -> None:
    edge = example("edges", censored=True, at_most=6 * GIB)
    rows = {str(cells[0]): cells for cells in bounds.by_source([edge, *(example("far", n, GIB) for n in range(9))])}
    assert rows["edges, at the lower end"][4:6] == ["100.0 %", "25.0 %"]
    assert rows["edges, at the upper end"][4:6] == ["0.0 %", "-16.7 %"]
