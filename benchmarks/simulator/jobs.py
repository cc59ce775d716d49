"""Whole jobs under other settings and on other cards: simulated from one trace and run again, compared to the byte.

    python -m benchmarks.simulator.jobs [--jobs N] [--seed S] [--json FILE]

A job is traced once on the null GPU, under torch's default settings on an unlimited card. Then, for each setting, the
simulator replays the trace on three cards, and the null GPU runs the job there:

    no end          1 TiB: the job's need
    1.15 x          instead, for settings with a share of the card: slightly more than the default's reserved peak
    smallest        the smallest card on which, by the simulator, the job runs: here the allocator collects and retries
    1 byte less     a card on which it must not run

One trace cannot predict a job whose requests change when memory is short (PyTorch tries cuDNN's other plans if it gets no
workspace). So each run's own requests, including failed ones, are simulated too: a difference there is the simulator's
fault.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import joblib
import numpy as np

from benchmarks import tables
from benchmarks.surveys import survey_models
from vramcast.core.errors import VramcastError
from vramcast.core.files import atomic_write
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, map_batch
from vramcast.simulator.card import Card
from vramcast.simulator.engine import play
from vramcast.simulator.requests import Requests
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import simulate
from vramcast.simulator.trace_edits import with_context
from vramcast.simulator.what_if import min_feasible
from vramcast.tracer.format.operators import Operator
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

SETTINGS: Final = (
    *("", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4", "large_segment_size_mb:40"),
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.95",
)
CardKind = Literal["no end", "1.15 x", "smallest", "1 byte less"]
CONTEXT_BYTES: Final = 20_000_000  # arbitrary: less than a real one, so that a share of the card matters to small jobs
_ENDLESS_BYTES: Final = 1 << 40  # arbitrary: more than any of the jobs takes
_ROOMY: Final = 1.15  # arbitrary: a card on which garbage is collected, and nothing else happens
_STEPS: Final = 3  # arbitrary: the third repeats the second
_OPTIMIZERS: Final = ("adam", "sgd", "adamw")
# arbitrary: the models of the survey's Hugging Face part are tiny, their batches are not
_BATCH_SIZES: Final = {"torchvision": (4, 8, 16), "timm": (4, 8, 16), "hf": (64, 128, 256)}
_NOT_TRACED: Final = ("detr",)  # measured: docs/survey.md, it needs true values


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of a job in bytes, the number of times that everything unused was freed to make room, and whether it finished."""

    allocated: int
    reserved: int
    retries: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """One job under one setting on one card.

    Attributes:
        run: Peaks on the null GPU.
        simulated: Peaks from the trace of the default run.
        own_is_equal: True if the simulation of this run's own requests, including failed ones, is equal.
        survived: Failed requests of the run after which it continued.
        given_back: Segments (expandable: pieces) that the run returned to the driver.
        n_events: Number of rows of the run's trace.
        first: First difference between run and simulation: the operator of the run at the first event that differs
            (in action, bytes, stream, block, or address from the first segment on); None if all events are equal.
    """

    job: str
    settings: str
    card: CardKind
    card_bytes: int
    run: Peaks
    simulated: Peaks
    own_is_equal: bool
    survived: int
    given_back: int
    n_events: int
    first: str | None

    @property
    def is_equal(self) -> bool:
        """Return whether the simulation is right to the byte."""
        return self.run == self.simulated


# ---------------------------------------------------------------------------------------------------- jobs
def sample(n: int, seed: int, folder: Path) -> dict[str, Job]:
    """Return `n` jobs by name, drawn in turn from the survey's lists; Hugging Face configs are written to `folder`.

    Optimizers take turns; every fourth job trains in mixed precision and every seventh only infers.
    """
    rng = random.Random(seed)
    card = device("a100-40gb")
    vision = dict(survey_models.torchvision_jobs(card))
    names = {
        "torchvision": sorted(vision),
        "timm": survey_models.timm_names(),
        "hf": sorted(set(survey_models.HUGGING_FACE) - {*_NOT_TRACED}),
    }
    for known in names.values():
        rng.shuffle(known)
    jobs = {}
    for i in range(n):
        source = tuple(names)[i % len(names)]
        name = names[source].pop()
        if source == "torchvision":
            job = vision[name]
        elif source == "timm":
            job = survey_models.timm_job(card, name)
        else:
            job = survey_models.hugging_face_job(card, name, folder)
        batch_size = rng.choice(_BATCH_SIZES[source])
        optimizer = _OPTIMIZERS[i // len(names) % len(_OPTIMIZERS)]
        job = _of_batch(job, batch_size).with_training(
            optimizer=optimizer,
            precision="amp-bf16" if i % 4 == 3 else "fp32",
            mode="infer" if i % 7 == 6 else "train",
            steps=_STEPS,
        )
        kind = optimizer if job.training.mode == "train" else "inference"
        jobs[f"{source} {name}, batch {batch_size}, {kind}, {job.training.precision}"] = job
    return jobs


def _of_batch(job: Job, batch_size: int) -> Job:
    def grown(leaf: Any) -> Any:
        is_batch = isinstance(leaf, TensorSpec) and leaf.shape[0] == survey_models.BATCH
        return leaf.with_batch(batch_size) if is_batch else leaf

    return replace(job, batch=map_batch(job.batch, grown), labels=job.labels and job.labels.with_batch(batch_size))


# ---------------------------------------------------------------------------------------------------- comparison
def compare(name: str, job: Job, settings: Sequence[str] = SETTINGS) -> list[Comparison]:
    """Return the job under each setting on each card, run and simulated.

    Raises:
        VramcastError: the job does not run at all.
    """
    job, options = replace(job, memory_bytes=_ENDLESS_BYTES), RunOptions(context_bytes=CONTEXT_BYTES)
    run = NullGpuTracer.shared().trace(job, options)
    assert run.trace is not None
    trace = run.trace
    taken = with_context(trace, [(0, CONTEXT_BYTES)])
    rows = []
    for text in settings:
        parsed = Settings.parse(text)
        smallest = min_feasible(taken, parsed)
        assert smallest is not None
        cards: dict[CardKind, int] = {"no end": _ENDLESS_BYTES, "smallest": smallest, "1 byte less": smallest - 1}
        if parsed.memory_fraction < 1:
            del cards["no end"]
            cards["1.15 x"] = int(_ROOMY * trace.header["peaks"]["reserved"]) + CONTEXT_BYTES
        for kind, card_bytes in sorted(cards.items(), key=lambda card: -card[1]):
            there = replace(job, alloc_conf=text, memory_bytes=card_bytes)
            other = run if there == job else NullGpuTracer.shared().trace(there, options)
            rows.append(_compare(name, there, kind, trace, other))
    return rows


def _compare(name: str, job: Job, kind: CardKind, trace: Trace, result: Result) -> Comparison:
    settings = Settings.parse(job.alloc_conf)

    found = simulate(trace, settings, Card(job.total_bytes, CONTEXT_BYTES))
    run = result.trace
    assert run is not None
    peaks = run.header["peaks"]
    again = Requests.of(with_failed_requests(run))
    own = play(again, settings, Card(job.total_bytes, CONTEXT_BYTES), columns=False).statistics
    different = first_difference(found.replayed(), run)
    return Comparison(
        job=name,
        settings=str(settings),
        card=kind,
        card_bytes=job.total_bytes,
        run=Peaks(peaks["allocated"], peaks["reserved"], peaks["retries"], result.status == "ok"),
        simulated=Peaks(found.allocated, found.reserved, found.retries, found.fits),
        own_is_equal=(own.allocated.peak, own.reserved.peak, own.n_retries, own.n_ooms)
        == tuple(peaks[name] for name in ("allocated", "reserved", "retries", "ooms")),
        survived=peaks["ooms"] - (result.status != "ok"),
        given_back=int(np.isin(run.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)).sum()),
        n_events=len(run),
        first=None if different is None else _place(run, different),
    )


def with_failed_requests(trace: Trace) -> Trace:
    """Return the trace with its OOM rows as requests that the job does without if they fail."""
    rows = np.flatnonzero(trace.action == Action.OOM)
    columns = {name: getattr(trace, name).copy() for name in ("action", "block", "category", "operator")}
    columns["action"][rows] = Action.ALLOC
    columns["block"][rows] = rows
    # The value that `Requests.of` uses for a request that may fail.
    columns["category"][rows] = Category.WORKSPACE
    columns["operator"][rows] = len(trace.operators)
    return replace(trace, **columns, operators=[*trace.operators, Operator.of("convolution")])


def first_difference(simulated: Trace, run: Trace) -> int | None:
    """Return the first row of `run` that differs from `simulated`; None without one.

    If a simulation ends for lack of memory, the rows that unwind the run do not count.
    """
    n = min(len(simulated), len(run))
    same = np.ones(n, np.bool_)
    for name in ("action", "size_bytes", "stream", "block"):
        same &= getattr(simulated, name)[:n] == getattr(run, name)[:n]
    moved = [trace.address[:n] - _first_address(trace) for trace in (simulated, run)]
    same &= (moved[0] == moved[1]) | (run.action[:n] == Action.OOM)  # which have no address
    if not same.all():
        return int(np.argmin(same))
    ended = n == len(simulated) and n > 0 and simulated.action[-1] == Action.OOM
    return None if ended or len(simulated) == len(run) else n


def _first_address(trace: Trace) -> np.uint64:
    addresses = trace.address[np.isin(trace.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))]
    return addresses[0] if len(addresses) else np.uint64(0)


def _place(trace: Trace, row: int) -> str:
    """Return the event in a row, and its operator: that of the next row with one."""
    if row == len(trace):
        return "the end"
    named = np.flatnonzero(trace.op[row:] >= 0)
    op = trace.operator_at(int(row + named[0])).name if len(named) else "no operator"
    return f"{Action(trace.action[row]).name} of {trace.size_bytes[row]:,} B, {op}"


# ---------------------------------------------------------------------------------------------------- report
def table(rows: Sequence[Comparison]) -> str:
    """Return a Markdown table with a row for each setting and card."""
    lines = [tables.heading(("settings", "card", *_HEADS), "ll")]
    for settings, card in dict.fromkeys((row.settings, row.card) for row in rows):
        some = [row for row in rows if (row.settings, row.card) == (settings, card)]
        cells = [
            len(some),
            sum(row.run.fits for row in some),
            *(sum(getattr(row.run, of) == getattr(row.simulated, of) for row in some) for of in _COMPARED),
            sum(row.first is None for row in some),
            sum(row.own_is_equal for row in some),
            _largest(some),
            sum(row.run.retries > 0 for row in some),
            sum(row.given_back > 0 for row in some),
            sum(row.survived > 0 for row in some),
        ]
        lines.append(tables.row(f"`{settings}`", card, *cells))
    return "\n".join(lines)


def by_job(rows: Sequence[Comparison]) -> str:
    """Return a Markdown table of the jobs that are not always simulated to the byte."""
    lines = [tables.heading(("job", "runs", "equal", "did without", "largest difference"))]
    for job in dict.fromkeys(row.job for row in rows if not row.is_equal):
        some = [row for row in rows if row.job == job]
        counts = (len(some), sum(row.is_equal for row in some), sum(row.survived > 0 for row in some))
        lines.append(tables.row(job, *counts, _largest(some)))
    return "\n".join(lines)


def _largest(rows: Sequence[Comparison]) -> str:
    """Return the largest error of a simulated peak, allocated or reserved, in both directions."""
    peaks = [(getattr(row.simulated, of), getattr(row.run, of)) for row in rows for of in ("allocated", "reserved")]
    simulated, run = max(peaks, key=lambda pair: abs(pair[0] - pair[1]))
    return f"{simulated - run:+,} B ({(simulated - run) / run:+.2%})" if simulated != run else "0"


_COMPARED: Final = ("reserved", "allocated", "retries", "fits")
_HEADS: Final = (
    *("jobs", "ran", "reserved =", "allocated =", "retries =", "ran =", "every event =", "own requests ="),
    *("largest difference", "retried", "gave back", "did without"),
)


def differences(rows: Sequence[Comparison]) -> list[str]:
    """Return a line for each unequal comparison: the difference (run, simulated), its first event, and its cause."""
    lines = []
    for row in rows:
        if row.is_equal:
            continue
        what = [
            f"{of} {getattr(row.run, of):,} -> {getattr(row.simulated, of):,}"
            for of in _COMPARED
            if getattr(row.run, of) != getattr(row.simulated, of)
        ]
        whose = "the job made other requests" if row.own_is_equal else "THE SIMULATOR"
        lines.append(f"{row.job}; {row.settings}; {row.card}: {', '.join(what)}; from {row.first}; {whose}")
    return lines


def _compare_or_say_why(name: str, job: Job) -> tuple[list[Comparison], str]:
    try:
        return compare(name, job), ""
    except VramcastError as error:
        return [], str(error)


def main() -> int:
    """Run the benchmark; return 1 if the simulator was wrong about any run's own requests."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--jobs", type=int, default=50)
    options.add_argument("--seed", type=int, default=2026)
    options.add_argument("--json", metavar="FILE", help="write every comparison")
    given = options.parse_args()
    started = time.perf_counter()
    rows: list[Comparison] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VRAMCAST_CACHE"] = folder  # cuDNN answers for each size of card: too many to store
        jobs = sample(given.jobs, given.seed, Path(folder) / "configs")
        run = joblib.Parallel(n_jobs=-1, return_as="generator")  # processes, each with a null GPU of its own
        answers = run(joblib.delayed(_compare_or_say_why)(name, job) for name, job in jobs.items())
        for number, (name, (found, why)) in enumerate(zip(jobs, answers, strict=True), start=1):
            rows += found
            failed += [f"{name}: {why}"] if why else []
            said = why or f"{sum(row.is_equal for row in found)} of {len(found)} equal"
            took = time.perf_counter() - started
            print(f"{took:5.0f} s  {number}/{given.jobs}  {name}: {said}", file=sys.stderr, flush=True)
    print(table(rows))
    served = [row for row in rows if not row.survived]
    print(f"\n{len(jobs) - len(failed)} of {len(jobs)} jobs ran.", *failed, sep="\n")
    n_events, seconds = sum(row.n_events for row in rows), time.perf_counter() - started
    print(f"{len(rows)} runs, {n_events:,} events, {seconds:.0f} s: {sum(row.is_equal for row in rows)} equal.")
    print(f"{len(served)} runs without a failed request that the job survived: {sum(row.is_equal for row in served)} equal.")
    print(f"\n{by_job(rows)}\n\nEvery difference (run -> simulated):", *differences(rows), sep="\n")
    if given.json:
        with atomic_write(given.json) as file:
            file.write(json.dumps([asdict(row) for row in rows], indent=1).encode())
    return int(not all(row.own_is_equal for row in rows))


if __name__ == "__main__":
    sys.exit(main())
