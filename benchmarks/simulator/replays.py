"""Replay of public memory histories in the allocator simulator: counts the predicted events.

    python -m benchmarks.simulator.replays [FOLDER]

FOLDER is by default $VRAMCAST_SHARED/data/snapshots, or ../shared/data/snapshots next to the checkout.

Every history of every file below FOLDER is replayed. Prints a table, and the wrong predictions if there are any.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks import tables
from benchmarks.accuracy.runner import data_folder
from vramcast.core.errors import VramcastError
from vramcast.simulator.replay import Replay, replay
from vramcast.tracer.format.snapshot import read_snapshot, trace_from_snapshot


def main(folder: Path) -> int:
    """Replay the histories and print the table; return 1 for a wrong prediction."""
    files = sorted(path for path in folder.glob("**/*") if path.suffix in (".pickle", ".pkl", ".gz"))
    if not files:
        print(f"No histories below {folder}: set VRAMCAST_SHARED, or pass a folder.", file=sys.stderr)
        return 2
    rows: list[Replay] = []
    columns = ("history", "start", "settings", "events", "addresses", "segment events", "final layout", "reserved peak, MiB")
    print(tables.heading(columns, "lllrrrl"))
    started = time.perf_counter()
    for path in files:
        try:
            snapshot = read_snapshot(path)
        except VramcastError as error:
            print(tables.row(path.name[:40], error, *[""] * 6))
            continue
        for index, history in enumerate(snapshot["device_traces"]):
            if not history:
                continue
            found = replay(trace_from_snapshot(snapshot, index))
            rows.append(found)
            layout = {True: "equal", False: "**differs**", None: "-"}[found.final_layout_equal]
            print(
                tables.row(
                    f"{path.parent.name} {path.name[:8]} #{index}",
                    "cold" if found.starts_cold else "warm",
                    found.settings,
                    f"{found.events:,}",
                    f"{found.address_matches:,} of {found.allocations:,}",
                    f"{found.segments_matched} of {found.segments_recorded}, {found.segments_predicted} predicted",
                    layout,
                    f"{found.peaks['reserved'].simulated >> 20:,}",
                )
            )
            for text in found.mismatches:
                print(f"    {text}")
    matches, allocations = sum(r.address_matches for r in rows), sum(r.allocations for r in rows)
    print(
        f"\n{len(rows)} histories, {sum(r.exact for r in rows)} exact; {matches:,} of {allocations:,} addresses "
        f"({100 * matches / max(allocations, 1):.3f} %); {sum(r.segments_matched for r in rows):,} of "
        f"{sum(r.segments_recorded for r in rows):,} segment events; {time.perf_counter() - started:.1f} s with reading"
    )
    return 0 if all(row.exact for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else data_folder() / "snapshots"))
