"""The rows of a source: what a harness offers, and which rows of it are repeated, in which order.

A harness is a module of this package. Its `case_of` returns a `Case` with these facts: `group` (the model), `family`, `stack`;
`settled` if the figure is that of later steps; `outside`, the bytes that a device's figure has in addition to the process;
`printed`, a file in which the job leaves what it read, as {"allocated": BYTES} or {"reserved": BYTES}.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from benchmarks.accuracy.runner import Case
from benchmarks.measured.measured_run import MeasuredRun
from vramcast.core.files import digest


class Harness(Protocol):
    """The interface of a module of this package."""

    def runs(self) -> list[MeasuredRun]:
        """Return all rows of the source."""

    def case_of(self, run: MeasuredRun) -> Case | str:
        """Return the job of a row, or the reason why the row cannot be repeated."""


def distinct(runs: Iterable[MeasuredRun]) -> dict[str, MeasuredRun]:
    """Return the rows by key; of those that repeat each other, the one with the (lower) median value."""
    alike: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        alike[run.key].append(run)
    return {key: sorted(same, key=lambda run: run.measured_bytes)[(len(same) - 1) // 2] for key, same in alike.items()}


def in_fair_order(rows: dict[str, MeasuredRun], seed: int) -> list[str]:
    """Return the keys in a seeded order that takes a row of each model in turn: any prefix is a fair sample.

    Rows that a screen leaves out come last.
    """
    of_model: dict[str, list[str]] = defaultdict(list)
    for key in sorted(rows, key=lambda key: digest(str(seed), key)):
        of_model[rows[key].model].append(key)
    turns = [
        (rows[key].quality == "screened", turn, digest(str(seed), model), key)
        for model, keys in of_model.items()
        for turn, key in enumerate(keys)
    ]
    return [key for *_, key in sorted(turns)]
