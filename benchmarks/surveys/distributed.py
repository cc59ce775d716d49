"""Survey of PyTorch's own parallelism, with times: each job of `distributed_jobs` on worlds of several sizes.

python -m benchmarks.surveys.distributed [--only TEXT] [--world-sizes 8,64,1024]

`--ranks auto`: the first and the last rank; of a pipeline, one rank per stage. A job that fails, or ends before its steps are
done, has its line in the table, and the exit code is 1. No card has measured these jobs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.surveys.distributed_jobs import HEAD, JOBS
from benchmarks.surveys.launched import launched
from benchmarks.tables import table
from vramcast.core.units import MIB

_STEPS: Final = 3  # spec: `train` of distributed_jobs


@dataclass(frozen=True, slots=True)
class Answered:
    """A job's result on a world: reserved MiB by rank, seconds, counted parts, and why it is incomplete ("" if it is not)."""

    reserved_mib: dict[int, float]
    seconds: float
    counted: tuple[str, ...]
    why: str


def answer(name: str, size: int, folder: Path) -> Answered:
    """Run a job on a world."""
    script = folder / "train.py"
    script.write_text(HEAD + JOBS[name], encoding="utf-8")
    found = launched(script, size, "--until", "end", "--no-bracket")
    if found.said is None:
        return Answered({}, found.seconds, (), found.line)
    said = found.said
    reserved = {one["rank"]: one["peaks"]["reserved"] / MIB for one in said["ranks"]}
    why = said["ended"] or ("" if said["steps"] >= _STEPS else f"{said['steps']} steps of {_STEPS}")
    return Answered(reserved, found.seconds, tuple(said["unknown_calls"]), why)


def _row(name: str, answers: Sequence[Answered]) -> list[object]:
    """Return a job's row: for each world, the least and the most that a traced rank reserves."""
    cells = []
    for one in answers:
        ends = {f"{end:,.0f}" for end in (min(one.reserved_mib.values(), default=0), max(one.reserved_mib.values(), default=0))}
        cells.append(one.why or " to ".join(sorted(ends, key=lambda text: float(text.replace(",", "")))))
    seconds = " ".join(f"{one.seconds:.0f}" for one in answers)
    counted = dict.fromkeys(what for one in answers for what in one.counted)
    return [name, *cells, len(answers[0].reserved_mib), seconds, "; ".join(counted)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per job; exit with 1 if one is incomplete."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs whose name contains TEXT")
    parser.add_argument("--world-sizes", default="8,64,1024", metavar="N,N", help="numbers of ranks (default: 8,64,1024)")
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.world_sizes.split(",")]
    rows, missed = [], 0
    for name in JOBS:
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            answers = [answer(name, size, Path(folder)) for size in sizes]
        missed += sum(bool(one.why) for one in answers)
        rows.append(_row(name, answers))
        print(rows[-1], file=sys.stderr, flush=True)
    print(table(["job", *(f"{size:,} ranks" for size in sizes), "ranks traced", "s", "counted"], rows))
    print(f"\n{len(rows) * len(sizes) - missed} of {len(rows) * len(sizes)} whole")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
