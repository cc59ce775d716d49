"""Cost of `vramcast learn` for a long history, and the result of an adoption that is killed repeatedly.

    python -m benchmarks.speed.adoption [--rows 1000,10000,100000] [--jobs 2] [--engine local]
    python -m benchmarks.speed.adoption --kills 20 [--rows 400]

The histories are made up, with a seed: many users' runs of some hundred jobs, small networks of this package. Each distinct job
is traced once, before the table, and its time is printed separately; the adoptions find those estimates in the cache folder,
so their "estimating" only names the jobs. Measured peaks are the simulated ones with an error of the model, noise, and a
context; one run in thirty ran out of memory, one in ten is unusable, for each reason in part.

With --kills, each round adopts a longer history into a folder that already has an artifact, kills the process group (SIGKILL)
after a random share of its undisturbed time, and starts it again, until it ends. The artifact must have the bytes of the
undisturbed one, the store its runs, and after each kill there must be a readable artifact. The exit code is 1 for a failure.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import table
from vramcast.adoption.artifact_store import Folder, digest_of
from vramcast.core.errors import VramcastError
from vramcast.core.units import GIB, MIB
from vramcast.datasets.run import Measurement, Passport, Run, Workload
from vramcast.estimates import run_examples
from vramcast.learner import artifact
from vramcast.learner.examples import Example
from vramcast.tracer.processes.job_process import python_path

DISTINCT = 240  # arbitrary: number of jobs
_MORE = 1_000  # arbitrary: rows of the next night
_GPU, _TOTAL = "NVIDIA H200", 150_754_820_096
_TORCH, _DRIVER = "2.11.0", "580.65"
_CONTEXT = 530 * MIB
_PHASES = ("reading", "estimating", "training", "judging", "comparing", "writing")
_COLUMNS = (
    "id", "name", "user", "target", "batch", "labels", "optimizer", "gpu", "gpu_total_bytes", "gpus", "torch", "driver",
    "process_bytes", "status", "censored", "seconds",
)  # fmt: skip


def workloads(distinct: int = DISTINCT) -> list[Workload]:
    """Return the distinct jobs: perceptrons of several sizes, none so small that its context dominates; two batch sizes."""
    found = []
    for number in range(distinct):
        model, size = number % max(distinct // 2, 1), number // max(distinct // 2, 1)
        width, depth, batch = 2048 + 128 * (model % 24), 2 + model // 24, (256, 1024)[size % 2]
        options = json.dumps({"inputs": 2048, "outputs": 10, "width": width, "depth": depth}, separators=(",", ":"))
        found.append(
            Workload(
                f"mlp-{width}x{depth}",
                target=f"vramcast.datasets.workloads.networks:mlp?{options}",
                batch=(f"{batch}x2048",),
                labels=f"{batch}:int64<10",
                optimizer=("sgd", "adam")[model % 2],
            )
        )
    return found


def traced(jobs: list[Workload]) -> list[Example]:
    """Return each job's example, estimated if the cache does not have it."""
    runs = [
        Run(f"{n}", job, Passport("csv", gpu=_GPU, gpu_total_bytes=_TOTAL, torch=_TORCH), Measurement("ok", process_bytes=GIB))
        for n, job in enumerate(jobs)
    ]
    return run_examples.examples_of_runs(runs).examples


def write_history(path: Path, rows: int, jobs: list[Workload], seen: list[Example], seed: int = 0) -> None:
    """Write a history as our plain table."""
    chance = random.Random(seed)
    bias = {job.target: math.exp(chance.gauss(0.02, 0.03)) for job in jobs}
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        for number in range(rows):
            # Each job once, then as on clusters: few jobs make most of the runs.
            place = number if number < len(jobs) else min(int(chance.expovariate(4 / len(jobs))), len(jobs) - 1)
            job, example = jobs[place], seen[place]
            peak = round(example.reserved * bias[job.target] * math.exp(chance.gauss(0, 0.01))) + _CONTEXT
            row = {
                "id": number, "name": job.name, "user": f"user{chance.randrange(40)}", "target": job.target,
                "batch": " ".join(job.batch), "labels": job.labels, "optimizer": job.optimizer, "gpu": _GPU,
                "gpu_total_bytes": _TOTAL, "gpus": 1, "torch": _TORCH, "driver": _DRIVER, "process_bytes": peak,
                "status": "ok", "censored": "false", "seconds": round(chance.lognormvariate(8, 1), 1),
            }  # fmt: skip
            if number >= len(jobs):
                row |= _spoiled(chance, peak)
            writer.writerow(row)


def _spoiled(chance: random.Random, peak: int) -> dict[str, object]:
    """Return the faults of a row, usually none."""
    kinds: tuple[dict[str, object], ...] = (
        {"status": "oom", "censored": "true", "process_bytes": round(peak * chance.uniform(0.5, 1))},
        {"status": "killed"},
        {"status": "error"},
        {"process_bytes": ""},
        {"gpus": 4},
        {"target": "", "batch": ""},
        {"target": "stranger:model"},
        {"process_bytes": "much"},
        {"status": "mine"},
        {"seconds": ""},
    )
    if chance.random() < 1 / 30:
        return kinds[0]
    return kinds[chance.randrange(1, len(kinds))] if chance.random() < 0.1 else {}


# ------------------------------------------------------------------------------------------------ the machine
@dataclass
class Peak:
    """The largest sum of resident memory of a process and its children, bytes."""

    size_bytes: int = 0


@contextmanager
def watched(pid: int, every_s: float = 0.2) -> Iterator[Peak]:
    """Watch a tree of processes while the block runs. Linux only; shared pages count for each."""
    peak, is_over = Peak(), threading.Event()

    def watch() -> None:
        while not is_over.wait(every_s):
            peak.size_bytes = max(peak.size_bytes, sum(map(_resident, _tree(pid))))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()


def _tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        try:
            found += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except OSError:
            continue
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def start(history: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """Start an adoption in its own process group; its answer is JSON."""
    command = [sys.executable, "-m", "vramcast", "learn", str(history), "--out", str(out), "--json", *options]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


# ------------------------------------------------------------------------------------------------ the table
def measured(history: Path, out: Path, name: str, *options: str) -> list[str]:
    """Return the cells of one adoption."""
    started, before = time.perf_counter(), os.times()
    process = start(history, out, *options)
    with watched(process.pid) as peak:
        said, errors = process.communicate()
    took, after = time.perf_counter() - started, os.times()
    if process.returncode not in (0, 1):
        raise SystemExit(f"{name}: exit {process.returncode}: {errors}")
    facts = json.loads(said)
    seconds = {} if facts["nothing_new"] else facts["seconds"]
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    outcome = "nothing new" if facts["nothing_new"] else "in place" if facts["promoted"] else "refused"
    for reason in [] if facts["nothing_new"] else facts["reasons"]:
        print(f"{name}: {reason}", file=sys.stderr)
    phases = [f"{seconds[phase]:.0f}" if phase in seconds else "-" for phase in _PHASES]
    return [name, *phases, f"{took:.0f}", f"{cpu_s:.0f}", f"{peak.size_bytes / GIB:.2f}", outcome]


def print_table(rows: list[int], options: list[str], keep: Path) -> None:
    """Print the cost of each history: first, with more runs, and unchanged."""
    jobs = workloads()
    started = time.perf_counter()
    seen = traced(jobs)
    print(
        f"{len(jobs)} jobs estimated in {time.perf_counter() - started:.0f} s, one process; 0: the cache has them",
        file=sys.stderr,
    )
    cells = []
    for count in rows:
        history, out = keep / f"{count}.csv", keep / f"site-{count}"
        write_history(history, count, jobs, seen)
        shutil.rmtree(out, ignore_errors=True)
        cells.append(measured(history, out, f"{count:,}", *options))
        cells.append(measured(history, out, f"{count:,}, unchanged", *options))
        write_history(history, count + _MORE, jobs, seen)
        cells.append(measured(history, out, f"{count:,}, and {_MORE:,} more", *options))
        print(table(["rows", *_PHASES, "s", "CPU s", "GiB", "outcome"], cells), flush=True)


# ------------------------------------------------------------------------------------------------ kills
def print_kills(kills: int, rows: int, seed: int, keep: Path, distinct: int) -> int:
    """Kill adoptions; return 1 if anything was lost."""
    jobs = workloads(distinct)
    seen = traced(jobs)
    first, second = keep / "first.csv", keep / "second.csv"
    write_history(first, rows, jobs, seen, seed)
    write_history(second, rows + rows // 2, jobs, seen, seed)
    before = keep / "before" / "site"
    _end(start(first, before, "--learn-from", "200", "--replace"))
    whole = keep / "whole" / "site"  # the card contains the name
    shutil.copytree(before, whole, symlinks=True)
    started = time.perf_counter()
    _end(start(second, whole, "--learn-from", "200", "--replace"))
    took_s = time.perf_counter() - started
    wanted = (digest_of(whole), _ids(whole))
    chance = random.Random(seed)
    out, done, lost, unlike, unreadable = keep / "killed" / "site", 0, 0, 0, 0
    shutil.copytree(before, out, symlinks=True)
    while done < kills:
        process = start(second, out, "--learn-from", "200", "--replace")
        try:
            process.communicate(timeout=chance.uniform(0.2, 1.1) * took_s)
            is_over = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            done, is_over = done + 1, False
        try:
            artifact.load(out)
        except VramcastError as error:
            unreadable += 1
            print(error, file=sys.stderr)
        print(f"{done} kills, {len(_ids(out))} runs", file=sys.stderr, flush=True)
        if is_over or done == kills:
            if not is_over:
                _end(start(second, out, "--learn-from", "200", "--replace"))
            lost += len(wanted[1] - _ids(out))
            unlike += digest_of(out) != wanted[0]
            shutil.rmtree(out)
            shutil.copytree(before, out, symlinks=True)
    print(f"{kills} kills: {lost} runs lost, {unlike} artifacts with other bytes, {unreadable} times no artifact to read")
    return 1 if lost or unlike or unreadable else 0


def _end(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"exit {process.returncode}: {errors}")


def _ids(out: Path) -> set[str]:
    from vramcast.datasets.journal import read_runs

    store = Folder(out).store
    return {run.id for run in read_runs(store).runs} if store.exists() else set()


def main() -> int:
    """Run the selected benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", default="", help="number of rows of each history, separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--distinct", type=int, default=30, help="jobs with --kills (default: 30)")
    parser.add_argument("--keep", help="folder in which to keep the histories and artifacts (default: none)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keep = Path(options.keep or folder)
        keep.mkdir(parents=True, exist_ok=True)
        if options.kills:
            return print_kills(options.kills, int(options.rows or 400), options.seed, keep, options.distinct)
        rows = [int(count) for count in (options.rows or "1000,10000,100000").split(",")]
        print_table(rows, ["--jobs", str(options.jobs), "--engine", options.engine, "--learn-from", "4000"], keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
