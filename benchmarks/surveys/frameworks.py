"""Frameworks over several ranks: each job's peaks on its first and last rank, compared with the state that must be there.

python -m benchmarks.surveys.frameworks [--only TEXT]

Needs DeepSpeed, accelerate, Lightning and transformers.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.surveys.framework_jobs import JOBS, PARAMETERS, Job, write
from benchmarks.tables import table
from vramcast.core.units import MIB

_PER_NODE: Final = 8
_LONGEST_LINE: Final = 120  # arbitrary: for a failure in the table
_COLUMNS: Final = (
    "job", "ranks", "traced", "steps", "allocated MiB", "reserved MiB", "state MiB", "allocated / state", "s", "unknown calls"
)  # fmt: skip


def row(job: Job, size: int, folder: Path) -> list[object]:
    """Return the table cells of a job with this many ranks."""
    local = min(size, _PER_NODE)
    command = shlex.split(job.command.format(size=size, nodes=size // local, local=local))
    options = ["--json", "--device", "h100", "--no-bracket", "--until", "steps", "--ranks", f"0,{size - 1}"]
    started = time.perf_counter()
    words = [sys.executable, "-m", "vramcast", "run", *options, "--", *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    seconds = f"{time.perf_counter() - started:.0f}"
    found = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    if not found or found.get("ended"):
        said = found.get("ended") or next(iter(done.stderr.strip().splitlines()[-1:]), "no message")
        return [job.name, size, *"------", seconds, f"fails: {str(said)[:_LONGEST_LINE]}"]
    peaks = [one["peaks"] for one in found["ranks"]]
    state = job.state_bytes(PARAMETERS, size)
    allocated = max(one["allocated"] for one in peaks)
    return [
        job.name, size, " ".join(str(one["rank"]) for one in found["ranks"]), found["steps"],
        " / ".join(dict.fromkeys(f"{one['allocated'] / MIB:,.0f}" for one in peaks)),
        " / ".join(dict.fromkeys(f"{one['reserved'] / MIB:,.0f}" for one in peaks)),
        f"{state / MIB:,.0f}", f"{allocated / state:.2f}" if state else "-", seconds,
        ", ".join(found["unknown_calls"]) or "none",
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each job and world."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs whose name contains TEXT")
    parser.add_argument(
        "--world-sizes", nargs="+", type=int, default=[2, 8, 64, 1024], metavar="N", help="only these numbers of ranks"
    )
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for job in JOBS:
            for size in job.worlds if options.only in job.name else ():
                if size not in options.world_sizes:
                    continue
                rows.append(row(job, size, Path(folder)))
                print(rows[-1], file=sys.stderr, flush=True)
    print(table(list(_COLUMNS), rows))


if __name__ == "__main__":
    main()
