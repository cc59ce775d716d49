"""Comparison of the three tracers and xMem on the same of xMem's published runs: error of `reserved`, and seconds.

    python -m benchmarks.accuracy.cpu_xmem      # first: the CPU tracer's rows
    python -m benchmarks.accuracy.tracers [--rows N]

Uses the rows that the CPU tracer could answer, or a random sample of them (seed 0). The simulator replays every trace on the
row's own card. Seconds are for one job on a warm worker on this machine; xMem's are its authors'.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from unittest import mock

from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.runner import BUILD, Case, write_csv
from benchmarks.accuracy.xmem import TRANSFORMERS, cases
from benchmarks.tables import table
from vramcast.core.errors import VramcastError
from vramcast.jobs.job import Job
from vramcast.simulator.card import Card
from vramcast.simulator.simulation import simulate
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.portable_tracers import FAKE
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

SEED: Final = 0  # arbitrary
_TIMEOUT_S: Final = 300.0  # arbitrary: far above the slowest
_FIELDS: Final = ("model", "optimizer", "batch", "zero_grad_mode")


def _key(row: dict[str, str], card: str) -> tuple[str, ...]:
    return (*(row[name] for name in _FIELDS), card)


def _reserved(case: Case, result: Result) -> int:
    """Return the peak as in `vramcast.Estimator.estimate_job`: on the card if the job fits, else its need."""
    assert result.trace is not None
    ending = simulate(result.trace, card=Card(case.job.total_bytes, case.options.context_bytes), columns=False)
    return (ending if ending.fits else simulate(result.trace, columns=False)).reserved


def _answer(case: Case, trace: Callable[[Job, RunOptions], Result]) -> tuple[int | None, float]:
    job = replace(case.job, search_path=tuple(sys.path))
    started = time.perf_counter()
    try:
        result = trace(job, case.options)
    except VramcastError as error:
        print(f"{case.name}: {error}", file=sys.stderr)
        return None, time.perf_counter() - started
    seconds = time.perf_counter() - started
    return _reserved(case, result), seconds


def run(n_rows: int | None) -> list[dict[str, object]]:
    """Return one row per run with measured bytes, and each tracer's bytes and seconds; write build/accuracy/tracers.csv."""
    with open(BUILD / "cpu_xmem.csv", newline="") as file:
        by_cpu = {_key(row, row["gpu"]): row for row in csv.DictReader(file)}
    chosen = [c for c in cases() if _key(c.facts, c.facts["device"]) in by_cpu and c.facts["real_oom"] != "True"]
    if n_rows is not None and n_rows < len(chosen):
        chosen = random.Random(SEED).sample(chosen, n_rows)
    rows: list[dict[str, object]] = []
    for family in ("cnn", "transformer"):
        of_family = [c for c in chosen if (c.facts["family"] == "cnn") == (family == "cnn")]
        packages = {} if family == "cnn" else {"PYTHONPATH": f"{TRANSFORMERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        path = [] if family == "cnn" else [str(TRANSFORMERS)]
        with (
            mock.patch.dict(os.environ, packages),
            mock.patch.object(sys, "path", [*path, *sys.path]),
            contextlib.closing(NullGpuTracer()) as null_gpu,
        ):
            for case in of_family:
                rows.append(_row(case, by_cpu[_key(case.facts, case.facts["device"])], null_gpu))
                print(f"{len(rows)}/{len(chosen)} {case.name}", file=sys.stderr, flush=True)
    write_csv("tracers", rows)
    return rows


def _row(case: Case, by_cpu: dict[str, str], null_gpu: NullGpuTracer) -> dict[str, object]:
    null_bytes, null_s = _answer(case, lambda *asked: null_gpu.trace(*asked, timeout_s=_TIMEOUT_S))
    fake_bytes, fake_s = _answer(case, lambda *asked: FAKE.trace(*asked, timeout_s=_TIMEOUT_S))
    return {
        **{name: case.facts[name] for name in (*_FIELDS, "family")},
        "gpu": case.facts["device"],
        "measured_bytes": case.measured_bytes,
        "nullgpu_bytes": null_bytes or "",
        "nullgpu_s": null_s,
        "fake_bytes": fake_bytes or "",
        "fake_s": fake_s,
        "cpu_bytes": by_cpu["estimate_bytes"],
        "cpu_s": by_cpu["seconds"],
        "xmem_bytes": case.facts.get("xmem_bytes", ""),
        "xmem_s": case.facts.get("xmem_seconds", ""),
    }


def report(rows: list[dict[str, object]]) -> str:
    """Return the comparison table as Markdown, by family and for all."""
    lines = []
    names = {"nullgpu": "null GPU", "fake": "fake tensors", "cpu": "CPU run", "xmem": "xMem, published"}
    for title in ("cnn", "transformer", "all"):
        of_title = [row for row in rows if title == "all" or (row["family"] == "cnn") == (title == "cnn")]
        for tool, name in names.items():
            found = [row for row in of_title if row[f"{tool}_bytes"] not in ("", "0")]
            pairs = [(float(str(row[f"{tool}_bytes"])), float(str(row["measured_bytes"]))) for row in found]
            # A row that shares its trace with an earlier one took no time: it is no measure of speed.
            seconds = [s for row in found if row[f"{tool}_s"] != "" and (s := float(str(row[f"{tool}_s"]))) > 0.05]
            median_s = f"{statistics.median(seconds):.1f}" if seconds else "-"
            if pairs:
                lines.append([title, name, *summarize(pairs).cells(), median_s])
    return table(["rows", "tool", *SUMMARY_COLUMNS, "median s"], lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, help="take a random sample of ROWS rows")
    print(report(run(parser.parse_args().rows)))


if __name__ == "__main__":
    main()
