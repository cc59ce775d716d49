"""Memory of a process before its first step, context and NCCL: our values compared with those printed by nvidia-smi.

python -m benchmarks.hardware.process_peaks

The logs are those of $VRAMCAST_SHARED/data/public/context_startup.csv: each row is one stack, with the most frequent size of
its processes. The table in vramcast/estimates/communicators.py has modes of these same logs, so this shows how well one number
fits many machines; it is no test on unseen ones. Cards outside our table are left out, and so are processes above 5 GiB, which
already hold data. A process with one rank makes a communicator if a launcher started it: the logs do not state that, so its
size decides (benchmarks.hardware.contexts).
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.accuracy.figures import summarize
from benchmarks.accuracy.runner import read_rows
from benchmarks.hardware.contexts import GROUP, level_of
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.estimates.communicators import sizes_of
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.context import context_bytes, kilothreads
from vramcast.tracer.format.nccl_calls import Calls

_MOST_MIB: Final = 5120  # arbitrary: above any context with NCCL in the logs
_KEYS: Final = {card.name: key for key, card in DEVICES.items()}
_OWN: Final = ("own process", "own process, rank 0, GPU 0")
_OTHERS: Final = "other ranks' process on GPU 0 (bare context, no NCCL)"


@dataclass(frozen=True, slots=True)
class Printed:
    """One row: the stack, and the size of most of its processes."""

    card: str
    torch: str
    ranks: int
    is_own: bool
    has_group: bool
    mib: int
    processes: int


def printed(rows: Iterable[Mapping[str, str]]) -> list[Printed]:
    """Return the comparable rows."""
    found = []
    for row in rows:
        key = _KEYS.get(row["gpu"])
        if key and row["torch"] and row["what"] in (*_OWN, _OTHERS) and int(row["mode_mib"]) <= _MOST_MIB:
            is_own, ranks, mib = row["what"] != _OTHERS, int(row["ranks"]), int(row["mode_mib"])
            has_group = is_own and (ranks > 1 or level_of(mib, kilothreads(DEVICES[key])) == GROUP)
            found.append(Printed(key, row["torch"], ranks, is_own, has_group, mib, int(row["mode_count"])))
    return found


def said(card: str, torch: str, ranks: int, *, has_group: bool) -> tuple[float, float, float]:
    """Return low end, point, and high end in MiB of a process that made one communicator, or of a context alone."""
    major = re.search(r"\+cu(\d\d)", torch)
    # A barrier launches a kernel; foreign processes are bare, or launched one.
    bare, after = (context_bytes(card, int(major[1]) if major else 12, (), torch=torch, kernels=k) for k in (False, True))
    context = after if has_group else replace(bare, high_bytes=after.high_bytes)
    sizes = [context.low_bytes, context.bytes, context.high_bytes]
    if has_group:
        (nccl,) = sizes_of([Calls(ranks, {"all_reduce": 1})], DEVICES[card], torch)
        sizes = [a + b for a, b in zip(sizes, (nccl.low_bytes, nccl.bytes_assumed, nccl.high_bytes), strict=True)]
    low, point, high = (size / MIB for size in sizes)
    return low, point, high


def _release(torch: str) -> str:
    minor = int(torch.split(".")[1])
    return "2.4" if minor < 5 else "2.5, 2.6" if minor < 7 else "2.7 and later"


def main() -> None:
    """Print the table."""
    groups: dict[tuple[str, str, int, bool, bool], list[Printed]] = defaultdict(list)
    for one in printed(read_rows("public/context_startup.csv")):
        groups[one.card, _release(one.torch), one.ranks if one.is_own else 0, one.is_own, one.has_group].append(one)
    lines, pairs, inside = [], [], 0
    for (card, release, ranks, is_own, has_group), rows in sorted(groups.items()):
        sizes = [row.mib for row in rows]
        estimates = [said(card, row.torch, row.ranks, has_group=has_group) for row in rows]
        within = sum(low <= size <= high for size, (low, _, high) in zip(sizes, estimates, strict=True))
        inside += within
        pairs += [(point, size) for size, (_, point, _) in zip(sizes, estimates, strict=True)]
        low, point, high = (
            min(e[0] for e in estimates),
            statistics.median(e[1] for e in estimates),
            max(e[2] for e in estimates),
        )
        whose = "another's context" if not is_own else ranks if has_group else f"{ranks}, no group"
        lines.append([
            DEVICES[card].name.removeprefix("NVIDIA "), release, whose, len(rows),
            sum(row.processes for row in rows), f"{statistics.median(sizes):,.0f}", f"{min(sizes):,} to {max(sizes):,}",
            f"{point:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{within} of {len(rows)}",
        ])  # fmt: skip
    head = ["card", "torch", "ranks", "stacks", "processes", "logged", "range", "here", "from", "stacks inside"]
    print(table(head, lines))
    figures = summarize(pairs)
    print(f"\n{figures.n} stacks: |error| median {100 * figures.median:.1f} %, p90 {100 * figures.p90:.1f} %; {inside} inside")


if __name__ == "__main__":
    main()
