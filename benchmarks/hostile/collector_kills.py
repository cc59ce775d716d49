"""The collector, killed repeatedly while it measures on the null GPU: counts lost and damaged runs.

    python -m benchmarks.hostile.collector_kills [--kills 100] [--seed 0]

Each round starts `vramcast measure --dry-run` on the same folder and kills it (SIGKILL, its whole process group) after a
random time. After each kill, every complete run must still be there. Prints one line at the end; the exit code is 1 if
anything was lost or damaged except the run in progress.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vramcast.datasets.journal import read_lines, read_runs
from vramcast.tracer.processes.job_process import python_path

LONGEST_S = 12.0  # arbitrary: the first runs are written some four seconds after the start


def main() -> int:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "runs.jsonl"
        command = [sys.executable, "-m", "vramcast", "measure", "--out", folder, "--dry-run", "h200", "--workers", "2"]
        environment = {**os.environ, "PYTHONPATH": python_path()}
        before: set[str] = set()
        lost = 0
        for number in range(options.kills):
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            time.sleep(chance.uniform(0, LONGEST_S))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            now = {run.id for run in read_runs(store).runs} if store.exists() else set()
            lost += len(before - now)
            before = now
            print(f"{number + 1} kills, {len(now)} runs", file=sys.stderr, flush=True)
        reading = read_runs(store)
        histories = {values["id"] for _, values in read_lines(Path(folder) / "histories.jsonl") if isinstance(values, dict)}
        bare = sum(run.id not in histories for run in reading.runs if "/" not in run.id and run.measurement.status == "ok")
    torn = sum("torn" in one.reason for one in reading.rejected)
    print(
        f"{options.kills} kills: {len(reading.runs)} runs whole, {lost} lost, {torn} torn lines kept aside, "
        f"{len(reading.rejected) - torn} damaged otherwise, {bare} runs without their history"
    )
    return 1 if lost or bare or len(reading.rejected) > torn or torn > options.kills else 0


if __name__ == "__main__":
    sys.exit(main())
