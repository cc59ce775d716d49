"""Golden results: sixty jobs whose answers must not change when the code does.

    python -m benchmarks.golden [--only TEXT] [--write]      # `make golden`

tests/golden/jobs.txt has the jobs as commands, tests/golden/results.json their results: peaks, bound, breakdown, and digests
of all requests and of their places in the job. A difference is printed by name, and the exit code is 1. Bounds of the
learned artifact are separate under "learned": they may change, and changes are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from vramcast.cli import checked_job
from vramcast.cli import main as command_line
from vramcast.cli import options as shared
from vramcast.core.errors import ArtifactError, VramcastError
from vramcast.estimates.bounds import learned
from vramcast.estimates.result import Estimate
from vramcast.jobs.text import JobText
from vramcast.simulator.replay import replay
from vramcast.tracer.format.snapshot import read_snapshot, trace_from_snapshot
from vramcast.tracer.format.trace import Action, Trace

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "tests" / "golden"
RESULTS: Final = FOLDER / "results.json"
MAY_MOVE: Final = "learned"
# Fields of the request log, apart from the place in the job.
_REQUESTS: Final = ("action", "size_bytes", "block", "stream")
_PLACES: Final = ("step", "phase", "category")


def jobs() -> dict[str, list[str]]:
    """Return the golden jobs: name -> command."""
    lines = (FOLDER / "jobs.txt").read_text().splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return {name: command.split() for name, command in rows}


def result_of(name: str, command: list[str], snapshots: Path) -> dict[str, Any]:
    """Return the compared results of one job; a replayed one needs the snapshot that its job left in `snapshots`."""
    if command[0] == "replay":
        return replay(trace_from_snapshot(read_snapshot(snapshots / f"{command[1]}.pickle"))).to_dict()
    try:
        estimate = asked(command)
    except VramcastError as error:
        return {"error": type(error).__name__}
    estimate.save_snapshot(snapshots / f"{name}.pickle")
    shown = estimate.to_dict()
    kept = (
        *("tracer", "steps", "peaks", "quantiles", "upper_bound", "context_bytes", "workspace_bytes", "breakdown", "peak_at"),
        *("out_of_memory", "unknown_calls", "open_calls", "ceiling_bytes", "noop_calls", "host_reads", "alloc_conf", "stack"),
    )
    return {
        **{key: shown[key] for key in kept},
        "noop_calls": digest(shown["noop_calls"]),
        "fits": sorted(card for card, fits in shown["fits"].items() if fits),
        "libraries": sorted(estimate.libraries),
        "events": len(estimate.trace),
        "requests": requests_digest(estimate.trace),
        "places": places_digest(estimate.trace),
        MAY_MOVE: learned_of(estimate),
    }


def learned_of(estimate: Estimate) -> dict[str, Any]:
    """Return the shipped artifact's answer for an estimate, or the reason why it cannot be read, while the features change."""
    artifact = ROOT / "models" / "default"
    try:
        estimator = replace(estimate.estimator, learned=(artifact.name, learned.load(artifact)))
        shown = estimator.apply_artifact(estimate).to_dict()
    except ArtifactError as error:
        return {"error": str(error)}
    return {"quantiles": shown["quantiles"], "out_of_distribution": shown["out_of_distribution"]}


def asked(command: list[str]) -> Estimate:
    """Return the estimate that the command line would print."""
    options = command_line.parser().parse_args(command)
    estimator = shared.estimator_of(vars(options))
    text = checked_job.job_text(options) if command[0] == "run" else JobText.of(vars(options))
    return estimator.estimate_job(text.job(estimator.card))


def requests_digest(trace: Trace) -> str:
    """Return a digest of all requests to the allocator, in order.

    Consecutive frees are sorted: autocast drops its cached copies in the order of their addresses.
    """
    columns = np.stack([np.asarray(getattr(trace, column), np.int64) for column in _REQUESTS])
    is_free = (trace.action == Action.FREE_REQUESTED) | (trace.action == Action.FREE_COMPLETED)
    run = np.cumsum(~is_free | ~np.concatenate(([False], is_free[:-1])))
    order = np.lexsort((trace.action, np.where(is_free, trace.block, 0), run))
    return digest(columns[:, order].tolist())


def places_digest(trace: Trace) -> str:
    """Return a digest of the place of each event in the job."""
    columns = [np.asarray(getattr(trace, column), np.int64).tolist() for column in _PLACES]
    named = [[table[at] if at >= 0 else "" for at in column.tolist()] for table, column in
             ((trace.ops, trace.op), (trace.modules, trace.module))]  # fmt: skip
    return digest([*columns, *named])


def digest(value: Any) -> str:
    """Return a short digest of a value as JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def differences(name: str, was: Any, is_: Any) -> list[str]:
    """Return the differences between two results in words, by path."""
    if isinstance(was, dict) and isinstance(is_, dict):
        keys = sorted({*was, *is_})
        return [line for key in keys for line in differences(f"{name}.{key}", was.get(key), is_.get(key))]
    return [] if was == is_ else [f"{name}: was {was}, is {is_}"]


def main(arguments: list[str] | None = None) -> int:
    """Compare or write the results; return 1 for an unexpected difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs with TEXT in their names, and those they replay")
    parser.add_argument("--write", action="store_true", help="store the results instead of comparing them")
    options = parser.parse_args(arguments)
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results: dict[str, Any] = {}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        chosen = {name: command for name, command in jobs().items() if options.only in name}
        needed = {command[1] for command in chosen.values() if command[0] == "replay"}
        for name, command in {**{name: jobs()[name] for name in sorted(needed)}, **chosen}.items():
            results[name] = json.loads(json.dumps(result_of(name, command, Path(folder))))
            found = differences(name, stored.get(name, {}), results[name]) if not options.write else []
            wrong += any(f".{MAY_MOVE}." not in line for line in found)
            print("\n".join([f"{'differs' if found else 'done' if options.write else 'equal'}  {name}", *found]), flush=True)
    if options.write:
        RESULTS.write_text(json.dumps({**stored, **results}, indent=1, sort_keys=True) + "\n")
    print(f"{len(results)} jobs, {wrong} of them differ from {RESULTS.relative_to(ROOT)}" if not options.write else "written")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
