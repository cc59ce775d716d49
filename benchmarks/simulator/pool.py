"""Comparison of planned pools with allocators that do not know the future, on traces of whole jobs and public memory histories.

    python -m benchmarks.simulator.pool [--json FILE] [--solve SECONDS]

Jobs are traced on the null GPU for six training steps; histories are those below $VRAMCAST_SHARED/data/snapshots (or ../shared
next to the checkout), and left out if absent. Each row has, in MiB:

    live        the peak of live bytes (requests rounded up to 512 B): no pool without swapping is lower
    caching     reserved bytes of PyTorch's caching allocator, default settings, simulated
    CnMem       size of a pool like CnMem
    first, best the paper's plans: size descending, first fit and best fit; as a multiple of `live`
    pool        the planned pool, as a multiple of `live`; the lowest of several orders and a search
    periodic    the same, for a plan that is valid for any number of iterations; - if no iteration is found
    - caching   difference between `pool` and the caching allocator
    - CnMem     difference between `pool` and CnMem

Seconds are for one core. With --solve, CP-SAT (OR-tools) gives lower bounds for pools more than 0.5 % above `live`, from the
blocks of at least 1 % of it. Every plan is checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import tables
from benchmarks.accuracy.runner import data_folder
from benchmarks.peers.planners import cnmem, optimum
from vramcast.core.errors import VramcastError
from vramcast.core.files import atomic_write
from vramcast.core.units import MIB
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.plans import pool, pool_checker, repetition
from vramcast.plans.lifetimes import Lifetimes
from vramcast.plans.packing import Fit, Items, place
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.snapshot import read_snapshot, trace_from_snapshot
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.run_options import RunOptions

CONFIGS: Final = Path(__file__).parents[1] / "accuracy" / "configs"
STEPS: Final = 6  # arbitrary: four equal ones, so that places can alternate every second iteration
_VISION: Final = {"alexnet": (128, 512), **dict.fromkeys(("vgg16", "resnet50", "resnet101", "inception_v3"), (32, 128))}
_TEXT: Final = {"gpt2": (4, 16), "distilgpt2": (8, 32), "t5-small": (8, 32)}
_LENGTH: Final = 512  # arbitrary: tokens
_CLASSES: Final = 1000  # spec: ImageNet
_VOCABULARY: Final = 30000  # arbitrary: below the vocabulary of each model; token ids do not change the memory
_MANY: Final = 50_000  # spec: the number of blocks to plan within 10 s
_CLOSE: Final = 1.005  # spec: the target median of pool / peak live
_LARGE: Final = 0.01  # arbitrary: smallest share of peak live for a block to count for the lower bound


@dataclass(frozen=True, slots=True)
class Row:
    """Memory of one trace in bytes, except `seconds`. `bound` is a proven lower bound."""

    name: str
    blocks: int
    live: int
    caching: int
    cnmem: int
    first_fit: int
    best_fit: int
    pool: int
    algorithm: str
    seconds: float
    periodic: int | None
    bound: int | None


def jobs() -> dict[str, Job]:
    """Return the jobs by name."""
    card = device("h200")
    found = {}
    for name, batches in _VISION.items():
        size = 299 if name == "inception_v3" else 224  # spec: torchvision's documentation of each model
        for batch in batches:
            images, labels = TensorSpec((batch, 3, size, size)), TensorSpec((batch,), "int64", high=_CLASSES)
            target = f"torchvision:{name}"
            training = Training(optimizer="adam", steps=STEPS)
            found[f"{name}, {batch}"] = Job(card, target=target, batch=images, labels=labels, training=training)
    for name, batches in _TEXT.items():
        for batch in batches:
            ids = TensorSpec((batch, _LENGTH), "int64", high=_VOCABULARY)
            tokens = {"input_ids": ids, "labels": ids}
            target = f"hf:{CONFIGS / name}.json"
            found[f"{name}, {batch}"] = Job(
                card, target=target, batch=tokens, training=Training(optimizer="adamw", steps=STEPS)
            )
    return found


def histories() -> Iterator[tuple[str, Trace]]:
    """Yield name and trace of every public history; blocks older than the history are its first rows."""
    for path in sorted((data_folder() / "snapshots").glob("**/*")):
        if path.suffix not in (".pickle", ".pkl", ".gz"):
            continue
        try:
            snapshot = read_snapshot(path)
        except VramcastError as error:
            print(f"{path.name[:40]}: {error}", file=sys.stderr)
            continue
        for index, history in enumerate(snapshot["device_traces"]):
            if history:
                yield f"{path.parent.name} {path.name[:8]} #{index}", simulate(trace_from_snapshot(snapshot, index)).replayed()


def simple(lifetimes: Lifetimes, fit: Fit) -> pool.PoolPlan:
    """Return the paper's plan: by descending size, in the lowest hole (first fit) or the smallest one (best fit)."""
    started = time.perf_counter()
    n = len(lifetimes)
    items = Items(lifetimes.size_bytes, np.arange(n + 1), lifetimes.birth, lifetimes.death)
    order = np.lexsort((lifetimes.birth, -lifetimes.size_bytes))
    offset = place(items, order, np.full(n, fit, np.uint8)).offset_bytes
    height_bytes = int((offset + items.size_bytes).max(initial=0))
    name = {Fit.LOWEST: "size descending, first fit", Fit.SMALLEST: "size descending, best fit"}[fit]
    return pool.PoolPlan(offset, items.size_bytes, height_bytes, name, time.perf_counter() - started)


def compare(name: str, trace: Trace, solve_seconds: float) -> Row:
    """Return the memory of `trace` with each allocator and plan."""
    lifetimes = Lifetimes.of(trace)
    live = lifetimes.peak_live()[0]
    started = time.process_time()
    plan = pool.plan(lifetimes)
    seconds = time.process_time() - started
    plans = [plan, *(simple(lifetimes, fit) for fit in (Fit.LOWEST, Fit.SMALLEST))]
    iterations = repetition.find(trace)
    plans += [] if iterations is None else [pool.plan(lifetimes, iterations)]
    for made in plans:
        problems = pool_checker.check(lifetimes, made)
        assert not problems, problems[:3]
    bound = None
    if solve_seconds and plan.height_bytes > _CLOSE * live:
        large = np.flatnonzero(lifetimes.size_bytes >= _LARGE * live)
        bound = max(live, optimum.solve(lifetimes.only(large), solve_seconds, workers=2).bound_bytes)
    return Row(
        name=name,
        blocks=len(lifetimes),
        live=live,
        caching=simulate(trace, columns=False).reserved,
        cnmem=cnmem.peak(trace),
        first_fit=plans[1].height_bytes,
        best_fit=plans[2].height_bytes,
        pool=plan.height_bytes,
        algorithm=plan.algorithm,
        seconds=seconds,
        periodic=None if iterations is None else plans[3].height_bytes,
        bound=bound,
    )


def line(row: Row) -> str:
    """Return a row of the Markdown table."""
    cells = [f"{row.blocks:,}", *(f"{size_bytes / MIB:,.0f}" for size_bytes in (row.live, row.caching, row.cnmem))]
    cells += [f"{size_bytes / row.live:.4f}" for size_bytes in (row.first_fit, row.best_fit, row.pool)]
    cells.append("-" if row.periodic is None else f"{row.periodic / row.live:.4f}")
    cells += [f"{100 * (1 - row.pool / other):.1f} %" for other in (row.caching, row.cnmem)]
    bound = "" if row.bound is None else f"; no pool below {row.bound / row.live:.4f}"
    return tables.row(row.name, *cells, f"{row.seconds:.2f}", f"{row.algorithm}{bound}")


def many_blocks(trace: Trace) -> Lifetimes:
    """Return the lifetimes of a trace with `_MANY` blocks: copies of `trace`; a block that outlives one outlives all."""
    one = Lifetimes.of(trace)
    times = np.repeat(np.arange(-(-_MANY // len(one))), len(one))[:_MANY] * one.length
    n = np.arange(_MANY) % len(one)
    length = int(times[-1]) + one.length
    death = np.where(one.death[n] < one.length, one.death[n] + times, np.where(times == 0, length, times + one.length))
    birth = one.birth[n] + times
    return Lifetimes(birth, one.size_bytes[n], birth, death, length)


def main() -> None:
    """Trace the jobs, plan, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--solve", type=float, default=0.0, metavar="SECONDS", help="time of CP-SAT for each lower bound")
    given = parser.parse_args()
    heads = (
        "trace",
        "blocks",
        "live",
        "caching",
        "CnMem",
        "first",
        "best",
        "pool",
        "periodic",
        "- caching",
        "- CnMem",
        "s",
        "by",
    )
    print(tables.heading(heads, "l" + "r" * (len(heads) - 2) + "l"))
    rows: list[Row] = []
    largest: Trace | None = None

    def add(name: str, trace: Trace) -> None:
        rows.append(compare(name, trace, given.solve))
        print(line(rows[-1]), flush=True)

    for name, job in jobs().items():
        trace = NullGpuTracer.shared().trace(job, RunOptions(limited=False)).trace
        assert trace is not None
        largest = trace if largest is None or len(trace) > len(largest) else largest
        add(name, trace)
    for name, trace in histories():
        add(name, trace)
    ratios = np.array([row.pool / row.live for row in rows])
    print(
        f"\npool / live: median {np.median(ratios):.4f}, largest {ratios.max():.4f}, {sum(ratios > 1.02)} of {len(rows)} > 1.02"
    )
    for what, others in (("caching", [row.caching for row in rows]), ("CnMem", [row.cnmem for row in rows])):
        saved = 100 * (1 - np.array([row.pool for row in rows]) / np.array(others))
        print(f"below {what}: median {np.median(saved):.1f} %, most {saved.max():.1f} %")
    assert largest is not None
    many = many_blocks(largest)
    started = time.process_time()
    plan = pool.plan(many)
    seconds = time.process_time() - started
    assert not pool_checker.check(many, plan)
    print(f"{len(many):,} blocks: {seconds:.1f} s, pool / live {plan.height_bytes / many.peak_live()[0]:.4f}")
    if given.json:
        document: dict[str, Any] = {"rows": [asdict(row) for row in rows], "many_blocks_seconds": seconds}
        with atomic_write(given.json) as file:
            file.write(json.dumps(document, indent=1).encode())


if __name__ == "__main__":
    main()
