"""Rows with other estimates in two sets of examples, for example when another release of torch traced them.

    git show REVISION:benchmarks/measured/shipped_runs.jsonl > before.jsonl
    python -m benchmarks.surveys.moved before.jsonl build/accuracy/examples-xmem.jsonl [...] [--least 0.01]

Prints how far the estimates of reserved memory moved, by kind of job, with the errors before and after, and each row that moved
by more than `--least`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.accuracy.figures import summarize
from benchmarks.tables import table
from vramcast.learner import examples
from vramcast.learner.examples import Example
from vramcast.learner.traits import CONVOLUTION

_COLUMNS: Final = ("kind", "rows", "unchanged", "median", "p90", "max", "error before", "error after")


@dataclass(frozen=True, slots=True)
class Moved:
    """A row's example before and after."""

    before: Example
    after: Example

    @property
    def kind(self) -> str:
        """With convolutions, or others."""
        return "convolutions" if self.after.traits.get("operators") == CONVOLUTION else "others"

    @property
    def by(self) -> float:
        """Estimate after / before - 1."""
        return self.after.reserved / self.before.reserved - 1


def pairs(before: Iterable[Example], after: Iterable[Example]) -> list[Moved]:
    """Return the rows of both; in shipped runs, a row's id follows the name of its set."""
    known = {one.id: one for one in before}
    known |= {name.partition(" ")[2]: one for name, one in known.items()}
    return [Moved(known[one.id], one) for one in after if one.id in known]


def _error(one: Example) -> float | None:
    return one.reserved / one.measured_reserved - 1 if one.measured_reserved and not one.censored else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.2f} %"


def _row(kind: str, moved: Sequence[Moved]) -> list[object]:
    by = summarize((one.after.reserved, one.before.reserved) for one in moved)
    unchanged = sum(one.by == 0 for one in moved) / len(moved)
    errors = [
        summarize((one.reserved, one.measured_reserved) for one in side if one.measured_reserved and not one.censored)
        for side in ([one.before for one in moved], [one.after for one in moved])
    ]
    return [kind, len(moved), f"{100 * unchanged:.0f} %", *by.cells()[1:4], *(one.cells()[1] for one in errors)]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="+")
    parser.add_argument("--least", type=float, default=0.01, help="smallest change of a row that is printed (default: 0.01)")
    options = parser.parse_args()
    moved = pairs(examples.read(options.before)[0], [one for path in options.after for one in examples.read(path)[0]])
    by_kind = defaultdict(list)
    for one in moved:
        by_kind[one.kind].append(one)
    print(table(_COLUMNS, [_row(kind, ones) for kind, ones in sorted(by_kind.items())]), end="\n\n")
    far = sorted((one for one in moved if abs(one.by) > options.least), key=lambda one: -abs(one.by))
    rows = [[one.after.id, *map(_percent, (one.by, _error(one.before), _error(one.after)))] for one in far]
    print(table(("row", "moved", "error before", "error after"), rows))


if __name__ == "__main__":
    main()
