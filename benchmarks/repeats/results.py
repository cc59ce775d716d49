"""Results of repeated rows: how they are kept, and the table of their errors."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.tables import table
from vramcast.core.plain import to_plain


@dataclass(frozen=True, slots=True)
class Result:
    """A repeated row; sizes are bytes.

    Attributes:
        key: The row's key.
        figure: What was measured, see `benchmarks.measured.measured_run.FIGURES`.
        measured: The figure.
        allocated, reserved, process: The estimate's peaks; 0 without an estimate.
        settled: The reserved peak from the second step on.
        outside: What the figure has besides the process, on an idle card.
        message: The reason why there is no estimate; "" if there is one.
        is_repeatable: False if the harness rejected the row.
        seconds: The time that it took.
        example: The row as an `Example`, as JSON; {} without an estimate, or if it was traced only once.
        facts: Those of the row's `Case`.
    """

    key: str
    figure: str
    measured: int
    allocated: int = 0
    reserved: int = 0
    process: int = 0
    settled: int = 0
    outside: int = 0
    message: str = ""
    is_repeatable: bool = True
    seconds: float = 0.0
    example: Mapping[str, Any] | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def estimated(self) -> int:
        """The estimate of the figure."""
        peaks = {"allocated peak": self.allocated, "reserved peak": self.reserved, "reserved at print": self.settled}
        return peaks.get(self.figure, self.process + self.outside)

    def is_in(self, by: str) -> str:
        """Return the row's group: its `family`, `group` (the model), `gpu` or another fact, or a field of the example."""
        return str({**(self.example or {}), **self.facts}.get(by, ""))


def kept(path: Path) -> dict[str, Result]:
    """Return the results of a file by key; the last line of a key counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result.key: result for result in (Result(**json.loads(line)) for line in lines)}


def keep(result: Result, path: Path) -> None:
    """Append a result to a file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(to_plain(result)) + "\n")


def summary(results: Iterable[Result], by: str = "family") -> str:
    """Return the errors by group and figure as a table, and why other rows have no estimate."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    for result in results:
        if result.message:
            reasons[result.message] += 1
            continue
        for group in (result.is_in(by), "all"):
            groups[result.figure, group].append((result.estimated, result.measured))
    rows = [[group, figure, *summarize(pairs).cells()] for (figure, group), pairs in sorted(groups.items())]
    without = [f"\n{n} without an estimate: {reason}" for reason, n in reasons.most_common()]
    return table([by, "figure", *SUMMARY_COLUMNS], rows, "ll") + "".join(without)
