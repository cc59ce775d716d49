"""Comparison of our own measured runs with our predictions, before any learning: by family, precision, and optimizer.

    python -m benchmarks.accuracy.measured datasets/h200 [--limit N] [--jobs 2] [--trust-targets]

FOLDER is the output of `vramcast measure`: runs.jsonl or runs.parquet, and passport.json. Each job is estimated for the card,
size, and torch of its passport, as `vramcast.estimate` does. The report has the errors of allocated, reserved, and process
peak; the agreement of the recorded run and its bare repeat; smallest cards; convolution workspaces; and differences between
the card's properties and the device table. For the folder of a dry run, all errors must be 0: the collector and the tracer
run the same jobs on the same null GPU.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import joblib

from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.runner import write_csv
from benchmarks.tables import table
from vramcast.core.errors import VramcastError
from vramcast.datasets.collector.measured_job import workspaces
from vramcast.datasets.run import Run
from vramcast.datasets.tables import read_set
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device


@dataclass(frozen=True, slots=True)
class Prediction:
    """Our prediction for a measured run; `problem` is the reason if there is none."""

    id: str
    allocated: int = 0
    reserved: int = 0
    process: int = 0
    min_feasible: int = 0
    out_of_memory: bool = False
    workspaces: tuple[int, ...] = ()
    seconds: float = 0.0
    problem: str = ""


def predict(run: Run, *, trust: bool) -> Prediction:
    """Return the prediction for the run's job on the run's card."""
    try:
        card = device(run.passport.gpu or "").with_memory(run.passport.gpu_total_bytes or 1)
        estimate = Estimator(tracer="nullgpu", timeout_s=600).uncorrected(run.workload.job(card, trust=trust))
    except VramcastError as error:
        return Prediction(run.id, problem=f"{type(error).__name__}: {error}"[:300])
    trace = estimate.trace
    asked = [size for _, size in workspaces(trace)]
    return Prediction(
        run.id,
        estimate.allocated,
        estimate.reserved,
        estimate.process,
        estimate.min_feasible or 0,
        estimate.out_of_memory is not None,
        tuple(sorted(set(asked))),
        estimate.seconds.get("total", 0.0),
    )


Pair = tuple[Run, Prediction]


def by(pairs: Sequence[Pair], group: Callable[[Run], str], what: str) -> str:
    """Return the table of one peak's errors by `group`."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run, said in pairs:
        measured = getattr(run.measurement, f"{what}_bytes")
        if measured is not None and not run.measurement.censored:
            for name in (group(run), "all"):
                groups[name].append((getattr(said, what), measured))
    rows = []
    for name, values in sorted(groups.items(), key=lambda item: (item[0] == "all", item[0])):
        exact = sum(estimate == measured for estimate, measured in values) / len(values)
        rows.append([name, *summarize(values).cells(), f"{100 * exact:.1f} %"])
    return table([what, *SUMMARY_COLUMNS, "equal to the byte"], rows)


def repeats(runs: dict[str, Run]) -> str:
    """Return the differences between bare repeats and recorded runs."""
    lines = []
    for what in ("allocated", "reserved", "process"):
        pairs = [
            (getattr(run.measurement, f"{what}_bytes"), getattr(runs[run.measurement.repeat_of].measurement, f"{what}_bytes"))
            for run in runs.values()
            if run.measurement.repeat_of in runs
        ]
        known = [(again, first) for again, first in pairs if again and first]
        lines.append([what, *summarize(known).cells()])
    return table(["bare repeat against recorded run", *SUMMARY_COLUMNS], lines)


def smallest_cards(runs: dict[str, Run], said: dict[str, Prediction]) -> str:
    """Return how often the predicted smallest card is between the largest cap that failed and the smallest that ran."""
    counts = {"inside": 0, "below: we said a card that fails": 0, "above: we said more than it takes": 0}
    capped: dict[str, list[Run]] = defaultdict(list)
    for run in runs.values():
        if run.workload.cap_bytes is not None:
            capped[run.id.partition("/")[0]].append(run)
    for of, tries in capped.items():
        if of not in said or not said[of].min_feasible:
            continue
        works = min((run.workload.cap_bytes or 0 for run in tries if run.measurement.status == "ok"), default=None)
        fails = max((run.workload.cap_bytes or 0 for run in tries if run.measurement.status == "oom"), default=0)
        point = said[of].min_feasible - (said[of].process - said[of].reserved)
        if point < fails:
            counts["below: we said a card that fails"] += 1
        elif works is not None and point > works:
            counts["above: we said more than it takes"] += 1
        else:
            counts["inside"] += 1
    return table(["smallest card against capped runs", "jobs"], counts.items())


def workspaces_table(pairs: Sequence[Pair]) -> str:
    """Return the number of measured convolution workspaces that we predicted, and the reverse."""
    jobs = [({size for _, size in run.measurement.workspaces}, set(said.workspaces)) for run, said in pairs]
    jobs = [(measured, ours) for measured, ours in jobs if measured or ours]
    both = sum(len(measured & ours) for measured, ours in jobs)
    rows = [
        ["jobs with some", len(jobs)],
        ["measured sizes", sum(len(measured) for measured, _ in jobs)],
        ["predicted sizes", sum(len(ours) for _, ours in jobs)],
        ["equal", both],
        ["jobs with all equal", sum(measured == ours for measured, ours in jobs)],
    ]
    return table(["convolution workspaces", "count"], rows)


def passport_table(folder: Path) -> str:
    """Return the card's own properties next to the device table, and the context by library."""
    facts = json.loads((folder / "passport.json").read_text())
    card = device(facts["passport"]["gpu"])
    theirs = facts["properties"]
    pairs = {
        "total_memory": card.total_bytes,
        "multi_processor_count": card.sm_count,
        "clock_rate": card.clock_khz,
        "memory_clock_rate": card.memory_clock_khz,
        "memory_bus_width": card.memory_bus_bits,
        "L2_cache_size": card.l2_bytes,
        "shared_memory_per_multiprocessor": card.shared_per_sm_bytes,
        "shared_memory_per_block_optin": card.shared_per_block_optin_bytes,
        "max_threads_per_multi_processor": card.threads_per_sm,
    }
    rows = [[name, theirs.get(name, "-"), ours, "" if theirs.get(name) == ours else "differs"] for name, ours in pairs.items()]
    record = json.loads(facts["cudnn_record"]) if facts.get("cudnn_record") else {}
    rows += [
        [f"cuDNN {name}", record.get(name, "-"), value, "" if record.get(name) == value else "differs"]
        for name, value in (card.cudnn_record().items() if record else ())
    ]
    context = table(["context after", "bytes"], facts["context_bytes"].items())
    return table(["property", "the card", "device table", ""], rows) + "\n\n" + context


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, help="use only the first LIMIT jobs")
    parser.add_argument("--trust-targets", action="store_true", help="run the code that rows name")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args()
    runs = {run.id: run for run in read_set(options.folder).runs}
    chosen = [run for run in runs.values() if "/" not in run.id and run.measurement.status in ("ok", "oom")][: options.limit]
    print(f"{len(runs)} runs, {len(chosen)} jobs, measured by {next(iter(runs.values())).passport.measured_by}\n")
    predictions = joblib.Parallel(n_jobs=options.jobs)(
        joblib.delayed(predict)(run, trust=options.trust_targets) for run in chosen
    )
    said = {one.id: one for one in predictions}
    write_csv("measured", [{"family": runs[one.id].workload.family, **asdict(one)} for one in predictions])
    failed = [one for one in predictions if one.problem]
    pairs = [(run, said[run.id]) for run in chosen if run.measurement.status == "ok" and not said[run.id].problem]
    for what in ("allocated", "reserved", "process"):
        print(by(pairs, lambda run: run.workload.family or "-", what) + "\n")
    print(by(pairs, lambda run: run.workload.precision or "-", "reserved") + "\n")
    print(by(pairs, lambda run: run.workload.optimizer or "-", "reserved") + "\n")
    ooms = [said[run.id] for run in chosen if run.measurement.status == "oom" and not said[run.id].problem]
    foreseen, false = sum(one.out_of_memory for one in ooms), sum(one.out_of_memory for _, one in pairs)
    print(f"out of memory: {foreseen} of {len(ooms)} foreseen, {false} false alarms in {len(pairs)}\n")
    print(repeats(runs) + "\n")
    print(smallest_cards(runs, said) + "\n")
    print(workspaces_table(pairs) + "\n")
    print(passport_table(options.folder) + "\n")
    for one in failed:
        print(f"not estimated: {one.id} {runs[one.id].workload.target}: {one.problem}")


if __name__ == "__main__":
    main()
