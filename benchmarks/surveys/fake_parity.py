"""Difference between the fake-tensor tracer and the null GPU, on jobs of the survey.

    python -m benchmarks.surveys.fake_parity [--jobs N] [--part torchvision|timm|hf] [--only TEXT] [--precision amp-bf16]
                                     [--device h100] [--channels-last] [--cudnn-benchmark]

The simulator replays both traces on an unlimited card, so only the requests differ. Convolution workspaces are compared too,
and again separately: their sizes, in order. Prints one line per job with the operators whose requests differ, and a table at
the end; writes build/fake_parity.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks import tables
from benchmarks.surveys import survey_models
from vramcast.core.errors import VramcastError
from vramcast.hardware.cards import device as find_device
from vramcast.hardware.device import Device
from vramcast.jobs.job import Job
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.portable_tracers import FAKE
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

OUT = Path(__file__).resolve().parents[2] / "build"
PARTS = ("torchvision", "timm", "hf")
_TIMEOUT_S = 300.0  # arbitrary: far above any job of the survey
_SHOWN = 6  # arbitrary: number of differing requests to print


@dataclasses.dataclass(slots=True)
class Parity:
    """A job traced both ways; differences are fake over null GPU, minus 1.

    Attributes:
        reserved: Difference of the simulated reserved peaks.
        allocated: Difference of the allocated peaks.
        workspaces: Convolution workspaces on the null GPU.
        same_workspaces: True if the fake tracer has the same ones, in the same order.
        missing: Requests of the null GPU that the fake tracer lacks, by (size, operator).
        extra: Requests that only the fake tracer has.
        same_order: True if all requests and frees are equal, one by one.
    """

    name: str
    reserved: float = 0.0
    allocated: float = 0.0
    workspaces: int = 0
    same_workspaces: bool = False
    requests: int = 0
    missing: int = 0
    extra: int = 0
    same_order: bool = False
    differing: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    resident_bytes: int = 0
    error: str = ""


def convolution_workspaces(trace: Trace) -> list[int]:
    """Return the sizes of convolution workspaces: requests of convolutions that are freed before the next request."""
    rows = np.flatnonzero(np.isin(trace.action, (Action.ALLOC, Action.FREE_REQUESTED)))
    sizes = []
    for row, following in itertools.pairwise(rows.tolist()):
        is_workspace = trace.action[row] == Action.ALLOC and trace.category[row] == Category.WORKSPACE
        if is_workspace and trace.operator_at(row).is_convolution and trace.block[following] == row:
            sizes.append(int(trace.size_bytes[row]))
    return sizes


def requests(trace: Trace) -> list[tuple[int, str]]:
    """Return (size in bytes, operator) of every request."""
    rows = np.flatnonzero(trace.action == Action.ALLOC)
    return [(int(trace.size_bytes[r]), trace.operator_at(r).name) for r in rows]


def history(trace: Trace) -> list[int]:
    """Return every request and free in order, frees with a minus."""
    sign = np.where(trace.action == Action.FREE_REQUESTED, -1, np.where(trace.action == Action.ALLOC, 1, 0))
    return [int(n) for n in (sign * trace.size_bytes)[sign != 0]]


def compare(name: str, job: Job) -> Parity:
    """Trace `job` both ways and return the differences."""
    parity = Parity(name)
    job = dataclasses.replace(job, search_path=tuple(sys.path))
    try:
        null = _trace_of(NullGpuTracer.shared().trace(job, RunOptions(limited=False), timeout_s=_TIMEOUT_S))
        started = time.perf_counter()
        result = FAKE.trace(job, timeout_s=_TIMEOUT_S)
    except VramcastError as error:
        parity.error = f"{type(error).__name__}: {error}"
        return parity
    parity.seconds = time.perf_counter() - started
    parity.resident_bytes = result.max_resident_bytes
    fake = _trace_of(result)
    ours, theirs = simulate(fake), simulate(null)
    parity.reserved = ours.reserved / theirs.reserved - 1
    parity.allocated = ours.allocated / theirs.allocated - 1
    asked = convolution_workspaces(null)
    parity.workspaces, parity.same_workspaces = len(asked), convolution_workspaces(fake) == asked
    parity.same_order = history(fake) == history(null)
    _differences(parity, requests(null), requests(fake))
    return parity


def _trace_of(result: Result) -> Trace:
    assert result.trace is not None
    return result.trace


def _differences(parity: Parity, null: list[tuple[int, str]], fake: list[tuple[int, str]]) -> None:
    """Fill in the multiset difference of the sizes, each with the operator that requests the size more often on that side."""
    null_sizes, fake_sizes = Counter(size for size, _ in null), Counter(size for size, _ in fake)
    missing, extra = null_sizes - fake_sizes, fake_sizes - null_sizes
    parity.requests, parity.missing, parity.extra = len(null), missing.total(), extra.total()
    for sign, sizes, left in (("-", missing, Counter(null) - Counter(fake)), ("+", extra, Counter(fake) - Counter(null))):
        for size, count in sorted(sizes.items(), key=lambda item: -item[0] * item[1])[:_SHOWN]:
            ops = sorted({op for of, op in left if of == size})
            parity.differing.append(f"{sign}{count} x {size} ({', '.join(ops)})")


def jobs_of(part: str, device: Device) -> list[tuple[str, Job]]:
    """Return (name, job) of one part of the survey."""
    if part == "torchvision":
        return list(survey_models.torchvision_jobs(device))
    if part == "timm":
        return list(survey_models.timm_jobs(device))
    return list(survey_models.hugging_face_jobs(device, OUT / "survey" / "configs"))


def table(results: dict[str, list[Parity]]) -> str:
    """Return the summary as a Markdown table; absolute differences, in percent."""
    columns = (
        *("part", "jobs", "traced", "exact order", "equal sizes", "equal workspaces"),
        *("reserved: median", "within 1 %", "worst", "s"),
    )
    rows = []
    for part, all_of in results.items():
        found = [p for p in all_of if not p.error]
        if not found:
            continue
        off = [abs(p.reserved) for p in found]
        equal = (sum(p.same_order for p in found), sum(not p.missing + p.extra for p in found))
        errors = (f"{100 * statistics.median(off):.2f} %", sum(d <= 0.01 for d in off), f"{100 * max(off):.1f} %")
        seconds = f"{statistics.median(p.seconds for p in found):.1f}"
        rows.append((part, len(all_of), len(found), *equal, sum(p.same_workspaces for p in found), *errors, seconds))
    return tables.table(columns, rows)


def main() -> int:
    """Run the benchmark; return 1 if a job could not be traced."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, help="only JOBS jobs of each part, evenly spread")
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--only", default="", help="only jobs whose name contains ONLY")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", type=find_device, default="a100-40gb")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--cudnn-benchmark", action="store_true")
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in ("precision", "channels_last", "cudnn_benchmark")}
    results: dict[str, list[Parity]] = {}
    for part in arguments.part or PARTS:
        chosen = [j for j in jobs_of(part, arguments.device) if arguments.only in j[0]]
        step = max(1, len(chosen) // arguments.jobs) if arguments.jobs else 1
        results[part] = []
        for name, job in chosen[::step][: arguments.jobs]:
            parity = compare(name, job.with_training(**options))
            results[part].append(parity)
            said = parity.error[:300] or "; ".join(parity.differing)
            print(
                f"{part:11} {name:42} reserved {100 * parity.reserved:+7.2f} %"
                f"  {parity.workspaces} workspaces {'equal' if parity.same_workspaces else 'differ'}"
                f"  allocated {100 * parity.allocated:+7.2f} %  -{parity.missing} +{parity.extra} of {parity.requests}"
                f"  {'same order' if parity.same_order else ''} {parity.seconds:.1f} s {said}",
                flush=True,
            )
    print("\n" + table(results))
    OUT.mkdir(parents=True, exist_ok=True)
    record = {part: [dataclasses.asdict(p) for p in found] for part, found in results.items()}
    (OUT / "fake_parity.json").write_text(json.dumps(record, indent=1))
    return int(any(p.error for found in results.values() for p in found))


if __name__ == "__main__":
    raise SystemExit(main())
