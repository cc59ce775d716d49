"""Survey of models and operators: the number that a tracer traces, and the reasons why the others fail.

    python -m benchmarks.surveys.survey [--tracer nullgpu|fake|cpu] [--part torchvision|timm|hf|large|operators] [--limit N]
        [--only TEXT]

Prints one line per job and a table at the end; writes build/survey/PART.json. A job counts as traced if forward, backward, and
the optimizer's steps ran to the end and the allocator's history was readable. A job that does not fit on the card is traced
again on an unlimited card, as `vramcast.estimate` does. The operators are scripts, which only the null GPU runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import tables
from benchmarks.surveys import survey_models
from vramcast.core.errors import JobError, VramcastError
from vramcast.hardware.cards import device as find_device
from vramcast.jobs.job import Job
from vramcast.simulator.simulation import simulate
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.portable_tracers import CPU, FAKE
from vramcast.tracer.program.imports import define_torchvision_operators
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

OUT = Path(__file__).resolve().parents[2] / "build" / "survey"
PARTS = ("torchvision", "timm", "hf", "large", "operators")
TRACERS = ("nullgpu", "fake", "cpu")
_TIMEOUT_S = 300.0  # arbitrary: far above any job of the survey


@dataclasses.dataclass(slots=True)
class Outcome:
    """The result of one job. `status`: traced, failed, or as-expected (an operator that must raise an error, and did)."""

    name: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    steps: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    resident_bytes: int = 0
    fits: bool = True
    refused: list[str] = dataclasses.field(default_factory=list)
    assumed: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    host_reads: int = 0


def _trace(tracer: str, job: Job, options: RunOptions = AS_USUAL) -> Result:
    """Trace `job`; the portable tracers' cards are unlimited."""
    if tracer == "nullgpu":
        return NullGpuTracer.shared().trace(job, options, timeout_s=_TIMEOUT_S)
    job = dataclasses.replace(job, search_path=tuple(sys.path))
    return (FAKE.trace if tracer == "fake" else CPU.trace)(job, options, timeout_s=_TIMEOUT_S)


def survey_one(name: str, job: Job, expected: str = "", tracer: str = "nullgpu") -> Outcome:
    """Trace `job` and return the result.

    Args:
        name: Name for the table.
        job: Job to run.
        expected: Required part of the error, for jobs that must be rejected.
        tracer: One of `TRACERS`.
    """
    started = time.perf_counter()
    outcome = Outcome(name, "failed")
    try:
        result = _trace(tracer, job)
        if result.status == "oom":
            outcome.fits = False
            result = _trace(tracer, job, RunOptions(limited=False))
        if result.ended:
            raise JobError(result.ended)
    except VramcastError as error:
        outcome.reason = f"{type(error).__name__}: {error}"
        if expected and expected in outcome.reason:
            outcome.status = "as-expected"
        outcome.seconds = time.perf_counter() - started
        return outcome
    outcome.seconds = time.perf_counter() - started
    outcome.steps = result.steps
    outcome.resident_bytes = result.max_resident_bytes
    outcome.refused = sorted(e.name for e in result.ledger if e.kind == "refused")
    outcome.assumed = sorted(e.name for e in result.ledger if e.kind == "assumed")
    outcome.host_reads = sum(e.hits for e in result.ledger if e.kind == "read")
    if result.trace is not None:
        if tracer == "nullgpu":
            peaks = result.trace.header["peaks"]
            outcome.allocated_bytes, outcome.reserved_bytes = peaks["allocated"], peaks["reserved"]
        else:
            played = simulate(result.trace)
            outcome.allocated_bytes, outcome.reserved_bytes = played.allocated, played.reserved
        outcome.warnings = list(result.trace.header.get("warnings", []))
    if expected:
        outcome.reason = f"expected to be refused with '{expected}', but it ran"
    elif result.status != "ok":
        outcome.reason = f"{result.status}: {result.message}"
    elif result.foreign:
        outcome.reason = f"NVIDIA's own libraries were loaded: {result.foreign}"
    elif job.command is None and result.steps != job.training.steps:
        outcome.reason = f"{result.steps} of {job.training.steps} steps"
    elif not outcome.allocated_bytes:
        outcome.reason = "the trace is empty"
    else:
        outcome.status = "traced"
    return outcome


def jobs_of(part: str) -> Iterator[tuple[str, Job, str]]:
    """Yield (name, job, expected error) of one part."""
    device = find_device("a100-40gb")
    if part == "operators":
        from benchmarks.surveys import survey_operators

        yield from survey_operators.jobs()
        return
    jobs: Iterable[tuple[str, Job]] = {
        "torchvision": lambda: survey_models.torchvision_jobs(device),
        "timm": lambda: survey_models.timm_jobs(device),
        "hf": lambda: survey_models.hugging_face_jobs(device, OUT / "configs"),
        "large": lambda: survey_models.large_jobs(device, OUT / "configs"),
    }[part]()
    for name, job in jobs:
        yield name, job, ""


def survey(part: str, limit: int | None, only: str, tracer: str) -> list[Outcome]:
    """Trace the jobs of `part`, print each, write them to build/survey and return them."""
    outcomes: list[Outcome] = []
    chosen = [j for j in jobs_of(part) if only in j[0]][:limit]
    for name, job, expected in chosen:
        outcome = survey_one(name, job, expected, tracer)
        outcomes.append(outcome)
        mark = {"traced": "ok  ", "as-expected": "no  ", "failed": "FAIL"}[outcome.status]
        print(
            f"{mark} {part:11} {name:45} {outcome.seconds:6.1f} s  {outcome.reserved_bytes / 2**20:9.0f} MiB reserved"
            f"  {outcome.resident_bytes / 2**20:6.0f} MiB RSS  {outcome.reason[:300]}",
            flush=True,
        )
    if limit is None and not only:
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / (f"{part}.json" if tracer == "nullgpu" else f"{part}-{tracer}.json")).write_text(
            json.dumps([dataclasses.asdict(o) for o in outcomes], indent=1)
        )
    return outcomes


def table(results: dict[str, list[Outcome]]) -> str:
    """Return the summary as a Markdown table."""
    columns = ("part", "jobs", "traced", "refused clearly", "failed", "median s", "max s", "max RSS MiB")
    rows = []
    for part, outcomes in results.items():
        if not outcomes:
            continue
        count = {s: sum(o.status == s for o in outcomes) for s in ("traced", "as-expected", "failed")}
        seconds = sorted(o.seconds for o in outcomes)
        share = 100 * count["traced"] / (len(outcomes) - count["as-expected"] or 1)
        times = (f"{seconds[len(seconds) // 2]:.1f}", f"{seconds[-1]:.1f}")
        traced, resident = f"{count['traced']} ({share:.1f} %)", max(o.resident_bytes for o in outcomes) / 2**20
        rows.append((part, len(outcomes), traced, count["as-expected"], count["failed"], *times, f"{resident:.0f}"))
    return tables.table(columns, rows)


def main() -> int:
    """Run the survey; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracer", choices=TRACERS, default="nullgpu")
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--limit", type=int, help="only the first N jobs of each part")
    parser.add_argument("--only", default="", help="only jobs whose name contains ONLY")
    arguments = parser.parse_args()
    if arguments.tracer != "nullgpu":
        if "operators" in (arguments.part or ()):
            parser.error("the operators are scripts, which only --tracer nullgpu runs")
        define_torchvision_operators()
    parts = arguments.part or [part for part in PARTS if arguments.tracer == "nullgpu" or part != "operators"]
    results = {part: survey(part, arguments.limit, arguments.only, arguments.tracer) for part in parts}
    print("\n" + table(results))
    for part, outcomes in results.items():
        for outcome in outcomes:
            if outcome.status != "traced":
                print(f"{outcome.status}: {part} {outcome.name}: {outcome.reason}")
    return int(any(o.status == "failed" for outcomes in results.values() for o in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
