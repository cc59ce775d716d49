"""Swapping on traced jobs: the lowest peak without waiting, and the slowdown of a step below 80 and 60 % of its peak.

    python -m benchmarks.simulator.swap [FILE]        FILE: also write every plan's figures there, as JSON

The jobs of benchmarks/simulator/pool.py are traced on the null GPU with accesses, for a card and its link; operator times are
that card's roofline. The independent simulator checks every plan. Prints a table; the exit code is 1 for a wrong plan. The
paper (arXiv 1903.06631) reports up to 34.2 % without communication overhead, on another card.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Final

from benchmarks import tables
from benchmarks.simulator import pool
from vramcast.core.files import atomic_write
from vramcast.hardware.cards import device
from vramcast.plans import swap, swap_checker
from vramcast.plans.swap import SwapPlan
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.run_options import RunOptions

CARDS: Final = (("t4", "pcie3"), ("a100-40gb", "pcie4"), ("h100", "nvlink-c2c"))  # the last: as in a GH200
SHARES: Final = (0.8, 0.6)  # arbitrary: shares of the peak
_STEPS: Final = 3  # arbitrary: the third repeats the second


@dataclass(frozen=True, slots=True)
class Row:
    """A job on a card; bytes, milliseconds, seconds. `overheads_ms`: at each of `SHARES`, None if impossible."""

    job: str
    card: str
    link: str
    step_ms: float
    peak_live: int
    least_peak: int
    moved_bytes: int
    overheads_ms: list[float | None]
    seconds: float
    faults: list[str]

    @property
    def reduction(self) -> float:
        """Return the reduction of the peak by swapping without waiting, as a share."""
        return 1 - self.least_peak / self.peak_live


def measure(name: str, trace: Trace, card: str, link: str) -> Row:
    """Return the figures of the plans for `trace`, each of them checked."""
    started = time.perf_counter()
    least = swap.plan(trace, link=link)
    plans: list[SwapPlan] = [least]
    plans += [swap.plan(trace, limit_bytes=int(share * least.peak_live_bytes), link=link) for share in SHARES]
    seconds = time.perf_counter() - started
    return Row(
        job=name,
        card=card,
        link=link,
        step_ms=least.step_ms,
        peak_live=least.peak_live_bytes,
        least_peak=least.peak_bytes,
        moved_bytes=least.moved_bytes,
        overheads_ms=[plan.overhead_ms for plan in plans[1:]],
        seconds=seconds,
        faults=[fault for plan in plans for fault in swap_checker.check(trace, plan).faults],
    )


def main(arguments: list[str]) -> int:
    """Trace, plan, check, and print."""
    columns = (
        *("job", "card, link", "step, ms", "peak, MiB", "least, MiB", "less", "moved, MiB"),
        *("80 %: + ms", "60 %: + ms", "s", "checked"),
    )
    print(tables.heading(columns, "ll" + "r" * 8 + "l"))
    rows: list[Row] = []
    for card, link in CARDS:
        for name, job in pool.jobs().items():
            asked = replace(job, device=device(card), search_path=tuple(sys.path)).with_training(steps=_STEPS)
            result = NullGpuTracer.shared().trace(asked, RunOptions(limited=False, accesses=True))
            if result.trace is None:
                print(tables.row(name, card, result.message.splitlines()[0]))
                continue
            row = measure(name, result.trace, card, link)
            rows.append(row)
            peaks = (f"{size_bytes >> 20:,}" for size_bytes in (row.peak_live, row.least_peak))
            moved = (f"{100 * row.reduction:.1f} %", f"{row.moved_bytes >> 20:,}")
            costs = ("-" if ms is None else f"{ms:.1f}" for ms in row.overheads_ms)
            checked = f"**{row.faults[0]}**" if row.faults else "yes"
            cells = (f"{card}, {link}", f"{row.step_ms:.1f}", *peaks, *moved, *costs, f"{row.seconds:.1f}", checked)
            print(tables.row(name, *cells), flush=True)
    for card, link in CARDS:
        less = [row.reduction for row in rows if row.card == card]
        print(f"\n{card}, {link}: median {100 * statistics.median(less):.1f} %, most {100 * max(less):.1f} % less")
    if arguments:
        with atomic_write(arguments[0]) as file:
            file.write(json.dumps([asdict(row) for row in rows], indent=1).encode())
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
