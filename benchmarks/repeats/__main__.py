"""Repeat measured rows of a public source on the null GPU.

    python -m benchmarks.repeats SOURCE [--row KEY] [--sample N] [--seed 0] [--limit N] [--again all|failed] [--once]
                                        [--by FIELD] [--rows FILE]

Without --row, rows come in a seeded order that takes each model in turn, and rows that a screen leaves out come last; --sample
takes the first N. Each result is appended to build/accuracy/repeats-SOURCE.jsonl at once, and rows that have one there are not
repeated, also if another process appended it meanwhile. The table has all rows chosen that have a result.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from benchmarks.accuracy.examples import TIMEOUT_S, estimate_of, example_from
from benchmarks.accuracy.runner import BUILD, Case
from benchmarks.measured.measured_run import MeasuredRun, read_runs
from benchmarks.repeats.packages import cudnn
from benchmarks.repeats.results import Result, keep, kept, summary
from benchmarks.repeats.rows import Harness, distinct, in_fair_order
from vramcast.core.errors import VramcastError
from vramcast.core.plain import to_plain
from vramcast.core.units import MIB
from vramcast.estimates.phases import course_of
from vramcast.estimates.result import Estimate
from vramcast.estimates.runs.other_plans import OtherPlans
from vramcast.learner.traits import of_plans
from vramcast.learner.workspaces import settled_reserved
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.cudnn.libraries import choose, second_opinion

SOURCES: Final = ("milabench", "super_resolution", "yolo")


def harness_of(source: str) -> Harness:
    """Return the harness of a source."""
    return cast(Harness, importlib.import_module(f"benchmarks.repeats.{source}"))


def repeated(key: str, run: MeasuredRun, harness: Harness, *, once: bool = False) -> Result:
    """Return the result of a row: its estimate, or why there is none.

    Args:
        key: The row's key.
        run: The row.
        harness: The source's harness.
        once: Whether one trace is enough: it gives the figure, and not what a bound needs.
    """
    started = time.perf_counter()
    case = harness.case_of(run)
    if isinstance(case, str):
        return Result(key, run.figure, run.measured_bytes, message=case, is_repeatable=False)
    result = Result(key, run.figure, run.measured_bytes, outside=int(case.facts.get("outside", 0)), facts=case.facts)
    try:
        result = _traced(result, case) if once else _with_estimate(result, case)
    except VramcastError as error:
        result = replace(result, message=f"{type(error).__name__}: {error}"[:300])
    return replace(result, seconds=round(time.perf_counter() - started, 1))


def _printed_by(case: Case) -> Path | None:
    """Return the file that a job leaves, after removing an earlier one."""
    printed = Path(case.facts["printed"]) if "printed" in case.facts else None
    if printed is not None:
        printed.unlink(missing_ok=True)
    return printed


def _traced(result: Result, case: Case) -> Result:
    """Return a result with the peaks of one trace; there is no context, and so no peak of the process."""
    printed = _printed_by(case)
    traced = NullGpuTracer.shared().trace(case.job, case.options, timeout_s=TIMEOUT_S)
    if traced.trace is None or (printed is not None and not printed.exists()):
        ended = course_of(traced.trace).ended if traced.trace is not None else f"{traced.status} {traced.message}"
        return replace(result, message=_unprinted(ended))
    peaks = {name: traced.trace.header["peaks"][name] for name in ("allocated", "reserved")}
    settled = settled_reserved(traced.trace)
    if printed is not None:
        peaks |= json.loads(printed.read_text(encoding="utf-8"))
        settled = peaks["reserved"]
    return replace(result, **peaks, settled=settled)


def _with_estimate(result: Result, case: Case) -> Result:
    printed = _printed_by(case)
    facts = {**case.facts, "figure": result.figure}
    cudnn(case.job.stack)
    estimate = estimate_of(case) if printed is None else _printing(case, printed)
    if isinstance(estimate, str):
        return replace(result, message=estimate)
    if case.job.training.mode == "train" and not estimate.steps:
        return replace(result, message=f"no training step: {' '.join(estimate.course.ended.split()) or 'it ended'}"[:300])
    example = example_from(replace(case, name=result.key, facts=facts), estimate)
    return replace(
        result,
        allocated=example.allocated,
        reserved=example.reserved,
        process=example.reserved + example.context,
        settled=settled_reserved(estimate.trace) if printed is None else example.reserved,
        example=to_plain(example),
    )


def _unprinted(ended: str) -> str:
    """Return why a job has not printed its peak: a time limit, an error, or its own end."""
    return f"the peak was not printed: {' '.join(ended.split()) or 'the job ended by itself'}"[:300]


def _printing(case: Case, printed: Path) -> Estimate | str:
    """Return the estimate of a job that prints its peaks, which replace those of the trace, or why it printed none.

    The job runs once for each cuDNN, because each run prints.
    """
    found = []
    for library in (choose(case.job.stack).library, second_opinion(case.job.stack)):
        if library is not None:
            printed.unlink(missing_ok=True)
            estimate = estimate_of(case, library.name)
            if not printed.exists():
                return _unprinted(estimate.course.ended)
            found.append(replace(estimate, **json.loads(printed.read_text(encoding="utf-8"))))
    smaller, *larger = sorted(found, key=lambda one: one.reserved)
    plans = [OtherPlans(one.cudnn, one.allocated, one.reserved, one.trace) for one in larger]
    traits = of_plans(smaller.reserved, smaller.without_workspaces, plans[0].reserved if plans else None)
    return replace(smaller, larger_plans=plans[0] if plans else None, traits={**smaller.traits, **traits})


def main() -> None:
    """Repeat the rows and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", choices=SOURCES)
    parser.add_argument("--row", metavar="KEY", help="repeat one row, by the beginning of its key")
    parser.add_argument("--sample", type=int, metavar="N", help="choose N rows")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the rows")
    parser.add_argument("--limit", type=int, metavar="N", help="repeat at most N of the chosen rows")
    parser.add_argument(
        "--again", choices=("all", "failed"), help="repeat also rows that have a result, or those without an estimate"
    )
    parser.add_argument("--once", action="store_true", help="trace a row once: the figure, without what a bound needs")
    parser.add_argument("--by", default="family", metavar="FIELD", help="group the table by this field of the examples")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="repeat the rows of another table of measured runs")
    options = parser.parse_args()
    if options.rows is not None and not options.rows.is_file():
        parser.error(f"--rows {options.rows} does not exist: give a table like datasets/measured/runs.csv")
    harness = harness_of(options.source)
    BUILD.mkdir(parents=True, exist_ok=True)  # jobs print there
    path = BUILD / f"repeats-{options.source}.jsonl"
    rows = distinct(harness.runs() if options.rows is None else read_runs(options.rows))
    if options.row:
        chosen = [key for key in rows if key.startswith(options.row)]
    else:
        chosen = in_fair_order(rows, options.seed)[: options.sample]
    if not chosen:
        parser.error(f"no row of {options.source} has a key that begins with '{options.row}': see {path}")
    before = kept(path)
    again = "all" if options.row else options.again
    done = {key for key, result in before.items() if again is None or (again == "failed" and not result.message)}
    for key in [key for key in chosen if key not in done][: options.limit]:
        if kept(path).get(key) != before.get(key):
            continue
        result = repeated(key, rows[key], harness, once=options.once)
        keep(result, path)
        said = result.message or f"{result.estimated / MIB:.1f} of {result.measured / MIB:.1f} MiB"
        print(f"{key} {rows[key].model} {rows[key].batch}: {said} ({result.seconds} s)", file=sys.stderr, flush=True)
    results = kept(path)
    print(summary([results[key] for key in chosen if key in results], options.by))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
