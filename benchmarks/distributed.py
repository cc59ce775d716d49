"""What of PyTorch's own parallelism is answered, and how fast: each job of `distributed_jobs` on worlds of several sizes.

python -m benchmarks.distributed [--only TEXT] [--world-sizes 8,64,1024]

`--ranks auto`: the first and the last rank, of a pipeline a rank of each stage. A job which fails, or ends before its steps are
done, is a row with its line, and the exit code is 1. No card has measured these jobs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.figures import table
from benchmarks.distributed_jobs import HEAD, JOBS
from vramcast.units import MIB


def row_of(name: str, size: int, folder: Path) -> tuple[list[object], bool]:
    """Return a job's row on a world, and whether it was answered whole."""
    script = folder / "train.py"
    script.write_text(HEAD + JOBS[name], encoding="utf-8")
    machines = max(size // 8, 1)
    command = [sys.executable, "-m", "vramcast", "run", "--json", "--device", "h100", "--until", "end", "--no-bracket"]
    launched = [*command, "--", "torchrun", f"--nnodes={machines}", f"--nproc_per_node={size // machines}", script.name]
    started = time.perf_counter()
    done = subprocess.run(launched, cwd=folder, capture_output=True, text=True, check=False)
    start = [name, f"{size:,}"]
    if done.returncode:
        return [*start, "", "", "", (done.stderr.strip().splitlines() or ["no message"])[-1]], False
    said = json.loads(done.stdout)
    peaks = [f"{one['rank']}: {one['peaks']['reserved'] / MIB:,.0f}" for one in said["ranks"]]
    seconds = f"{time.perf_counter() - started:.0f}"
    unknown = ", ".join(said["unknown_calls"])
    ended = said["ended"] or ""
    return [*start, "; ".join(peaks), seconds, unknown, ended], not ended and said["steps"] == 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a job and world; exit 1 where one is not whole."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs whose name has this in it")
    parser.add_argument("--world-sizes", default="8,64,1024", metavar="N,N", help="how many ranks (default: 8,64,1024)")
    options = parser.parse_args(arguments)
    rows, missed = [], 0
    for name in JOBS:
        for size in map(int, options.world_sizes.split(",") if options.only in name else ()):
            with tempfile.TemporaryDirectory() as folder:
                row, is_whole = row_of(name, size, Path(folder))
            rows.append(row)
            missed += not is_whole
            print(row, file=sys.stderr, flush=True)
    print(table(["job", "ranks", "reserved MiB by rank", "s", "unknown calls", "ended"], rows))
    print(f"\n{len(rows) - missed} of {len(rows)} whole")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
