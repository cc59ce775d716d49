"""The learned correction on the public measured runs, cross-validated over models: errors, coverage, over-provision.

    python -m benchmarks.accuracy.learned SET [--with SET ...] [--second-round] [--report FILE.html] [--jobs 2]

SET is xmem, timm, cnn or mlp. Reads build/accuracy/examples-SET.jsonl, made by `python -m benchmarks.accuracy.examples SET`.
Each run is evaluated with a correction that was trained and calibrated without its model; the table also has the plain
simulation with the same contexts. `--with` adds other sets to the training data, without the models of the evaluated runs: a
level of 0.99 needs 99 models, more than xmem has. `--second-round` runs each job of xmem again on the null GPU, on a card with
room for exactly the bound at 0.99, as xMem's second round does on a real one; without it the simulator replays that round.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from benchmarks.accuracy import xmem
from benchmarks.accuracy.examples import SETS, TIMEOUT_S, path_of
from benchmarks.accuracy.runner import Case, python_path
from benchmarks.accuracy.tools import tool_runs
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.learner import cross_validation, examples, stacks
from vramcast.learner.evaluation import metrics, report
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.learner.examples import Example
from vramcast.tracer.nullgpu.client import NullGpuTracer

_KEYS = ("mre", "p90", "max", "signed_median", "under_rate", "pef")


def _row(name: str, scored: Sequence[Scored], level: float | None = None) -> list[object]:
    figures = metrics.evaluate(scored, level=level)
    errors = [run.estimated_bytes - run.measured_bytes for run in scored if not run.is_lower_bound]
    exact = sum(abs(error) < MIB for error in errors) / max(len(errors), 1)
    return [
        name,
        figures["runs"],
        f"{100 * exact:.1f} %",
        *("-" if figures[key] is None else f"{100 * figures[key]:.2f} %" for key in _KEYS),
    ]


def _read(name: str) -> list[Example]:
    """Return a set's examples; a model has the same group in all sets."""
    found, _ = examples.read(path_of(name))
    return [replace(example, group=re.sub("[^a-z0-9]", "", example.group.rpartition("/")[2].lower())) for example in found]


def second_rounds(scored: Sequence[Scored], level: float) -> list[Scored]:
    """Return the runs with the result of a second round on the null GPU, on cards exactly as large as the bounds."""
    cases = {case.name: case for case in SETS["xmem"]()}
    return [run if run.ran_out_of_memory else replace(run, **_second_round(cases[run.id], run.bounds[level])) for run in scored]


def _second_round(case: Case, cap_bytes: int) -> dict[str, Any]:
    capped = replace(case.job, memory_bytes=cap_bytes + case.options.context_bytes)
    ran = NullGpuTracer.shared().trace(capped, replace(case.options, limited=True), timeout_s=TIMEOUT_S).status == "ok"
    return {"ran_at": cap_bytes if ran else None, "died_at": None if ran else cap_bytes, "is_emulated": False}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--with", dest="others", action="append", default=[], choices=SETS, help="also learn from this set")
    parser.add_argument("--second-round", action="store_true", help="run xmem's second round on the null GPU (two minutes)")
    parser.add_argument("--report", metavar="FILE.html")
    parser.add_argument("--parameters", type=json.loads, default={}, metavar="JSON", help="parameters of the learner")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    found = _read(options.set)
    others = [example for name in options.others for example in _read(name)]
    contexts = stacks.learn(found)
    plain = [one for example in found if (one := cross_validation.scored_of(example, None, contexts=contexts)) is not None]
    learned = cross_validation.cross_validated(found, {"n_jobs": options.jobs, **options.parameters}, others=others)
    rows = [_row("simulated", plain), _row("corrected", learned), _row("bound at 0.99", learned, 0.99)]
    if options.second_round:
        rows.append(_row("bound at 0.99, run again", second_rounds(learned, 0.99), 0.99))
    if options.set == "xmem":
        rows.append(_row("xMem, as published", tool_runs("xmem")))
    print(table([options.set, "runs", "exact to the MiB", *_KEYS], rows) + "\n")
    figures = metrics.evaluate(learned)
    print(
        table(
            ["level", "holds", "median over"],
            [
                [level, f"{100 * share:.2f} %", f"{100 * figures['overprovision'][level]:.2f} %"]
                for level, share in figures["coverage"].items()
                if share is not None
            ],
        )
    )
    if options.report:
        report.write_report(learned, options.report, title=f"vramcast on {options.set}")


if __name__ == "__main__":
    # transformers 4.51 comes first for xMem's rows, as in benchmarks.accuracy.examples.
    packages = xmem.TRANSFORMERS if xmem.TRANSFORMERS.is_dir() else None
    with mock.patch.dict(os.environ, {"PYTHONPATH": python_path(packages)}):
        main()
