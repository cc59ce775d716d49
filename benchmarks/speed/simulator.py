"""Events per second of the allocator simulator on one core, compiled and in plain Python.

    python -m benchmarks.speed.simulator [--steps N] [--repeats N]

An event is a row of the trace; a request (malloc or free) has one or two rows. The same run measures torch's own allocator on
the null GPU, driven from Python with the same requests; its peak must be equal to the byte. Then it measures whole questions: 6
settings x 8 cards, and the smallest card. The best of several repeats counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from benchmarks import tables
from benchmarks.simulator import allocator_driver
from benchmarks.simulator.allocator_driver import RawResult, Request
from benchmarks.simulator.jobs import SETTINGS
from vramcast.core.units import gib
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.simulator.card import Card
from vramcast.simulator.engine import Engine, play
from vramcast.simulator.outcome import Outcome
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.settings import Settings
from vramcast.simulator.what_if import min_feasible, what_if
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.processes.thread_pool import n_processors
from vramcast.tracer.protocol.run_options import RunOptions

DEVICE = device("a100-40gb")
STEPS = 45  # arbitrary: steps of ResNet-50; slightly more than 100,000 events
LEAST_EVENTS = 100_000  # spec: the size for which a speed is stated
REPEATS = 5  # arbitrary; the slow ones (Python, torch) are repeated half as often
N_CARDS = 8  # arbitrary
_HEADS = ("compiled", "peaks only", "Python", "torch, null GPU", "compiled / torch", "retries")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for all requests of one trace: compiled, compiled without columns, in Python, and torch's own allocator."""

    compiled: float
    peaks_only: float
    python: float
    torch: float
    retries: int


def long_trace(steps: int) -> Trace:
    """Return the trace of `steps` training steps of ResNet-50 (batch 32, AdamW) on an unlimited card."""
    labels = TensorSpec((32,), "int64", high=1000)
    image = TensorSpec((32, 3, 224, 224))
    training = Training(optimizer="adamw", steps=steps)
    job = Job(DEVICE, "torchvision:resnet50", batch=image, labels=labels, training=training)
    trace = NullGpuTracer.shared().trace(job, RunOptions(limited=False)).trace
    assert trace is not None
    return trace


def raw_sequence(requests: Requests) -> list[Request]:
    """Return mallocs and frees as requests of `benchmarks.simulator.allocator_driver`."""
    names = {RequestKind.MALLOC: "malloc", RequestKind.TRY: "malloc", RequestKind.FREE: "free"}
    columns = (requests.kind.tolist(), requests.size_bytes.tolist(), requests.stream.tolist(), requests.block.tolist())
    sequence: list[Request] = []
    for row, (kind, size_bytes, stream, block) in enumerate(zip(*columns, strict=True)):
        name = names[RequestKind(kind)]
        sequence.append((name, row, size_bytes, stream) if name == "malloc" else (name, block))
    return sequence


def time_one(requests: Requests, settings: str, card_bytes: int | None, repeats: int) -> Timing:
    """Return the seconds of the requests each way; exit if the peaks differ by a byte."""
    parsed = Settings.parse(settings)
    limited = card_bytes is not None
    total_bytes = card_bytes or DEVICE.total_bytes
    fewer = max(repeats // 2, 2)
    sequences = [raw_sequence(requests)] * fewer
    theirs = allocator_driver.play(sequences, DEVICE.with_memory(total_bytes), settings, limited=limited)

    def ours(engine: Engine, *, columns: bool = True) -> Outcome:
        return play(requests, parsed, Card(total_bytes, limited=limited), columns=columns, engine=engine)

    compiled, outcome = best(lambda: ours("compiled"), repeats)
    peaks_only, _ = best(lambda: ours("compiled", columns=False), repeats)
    python, _ = best(lambda: ours("python"), fewer)
    _check_equal(outcome, theirs[0], settings)
    return Timing(compiled, peaks_only, python, min(result.seconds for result in theirs), outcome.statistics.n_retries)


def _check_equal(ours: Outcome, theirs: RawResult, settings: str) -> None:
    found = (ours.statistics.reserved.peak, ours.statistics.n_retries)
    expected = (theirs.statistics["reserved_bytes.all.peak"], theirs.statistics["num_alloc_retries"])
    if found != expected:
        sys.exit(f"{settings or 'default'}: simulated {found}, torch {expected}: (reserved bytes, retries) differ.")


def best(function: Callable[[], _Result], repeats: int) -> tuple[float, _Result]:
    """Return the fewest seconds of `function` in `repeats` calls, and its last result."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - started)
    return min(seconds), result


def main() -> None:
    """Measure and print the tables."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--steps", type=int, default=STEPS, help="number of training steps in the trace")
    options.add_argument("--repeats", type=int, default=REPEATS)
    given = options.parse_args()
    started = time.perf_counter()
    trace = long_trace(given.steps)
    made = time.perf_counter() - started
    if len(trace) < LEAST_EVENTS:
        sys.exit(f"The trace has {len(trace):,} events: {LEAST_EVENTS:,} are needed, give more --steps.")
    seconds, requests = best(lambda: Requests.of(trace), given.repeats)
    print(
        f"ResNet-50, {given.steps} steps: {len(trace):,} events = {len(requests):,} requests; "
        f"traced in {made:.1f} s, requests taken from it in {1000 * seconds:.0f} ms\n"
    )
    smallest = min_feasible(requests)
    assert smallest is not None
    cases = (
        ("default", "", None),
        ("expandable_segments:True", SETTINGS[1], None),
        (f"default, card of {gib(smallest)}", "", smallest),
    )
    print(tables.heading(("Millions a second on one core", "of", *_HEADS), "ll"))
    for name, settings, card_bytes in cases:
        timing = time_one(requests, settings, card_bytes, given.repeats)
        for of, count in (("events", len(trace)), ("requests", len(requests))):
            ways = (timing.compiled, timing.peaks_only, timing.python, timing.torch)
            rates = (f"{count / way / 1e6:.3g}" for way in ways)
            print(tables.row(name, of, *rates, f"{timing.torch / timing.compiled:.0f}", timing.retries), flush=True)

    without_end = play(requests, columns=False).statistics.reserved.peak
    cards = np.linspace(0.9 * smallest, 1.1 * without_end, N_CARDS).astype(int).tolist()
    parsed = [Settings.parse(text) for text in SETTINGS]
    print("\n" + tables.heading(("question", "threads", "s")))
    question = f"{len(parsed)} settings x {N_CARDS} cards, with the smallest card of each"
    for threads in (1, 2):
        seconds, _ = best(lambda threads=threads: what_if(trace, parsed, cards, n_jobs=threads), 2)  # type: ignore[misc]
        print(tables.row(question, threads, f"{seconds:.2f}"))
    seconds, _ = best(lambda: min_feasible(requests), 2)
    print(tables.row("the smallest card, default settings", n_processors(), f"{seconds:.2f}"))


if __name__ == "__main__":
    main()
