"""xMem's published runs with the CPU tracer: xMem's method in vramcast, compared with xMem's own published estimates.

    python -m benchmarks.accuracy.cpu_xmem [--rows N] [--minutes N] [--gib N]

Each row's job runs for real on the CPU on three small batches. If all batches make the same requests and every size is affine
in the batch, the trace of the row's own batch follows by arithmetic (`affine_batch.py`); otherwise the row is left out and
counted. Convolution workspaces are not affine; they count as 0 here, as in xMem. Jobs whose weights, gradients, and optimizer
state exceed `--gib` of RAM are left out too. `--rows` takes a random sample (seed 0).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import Final
from unittest import mock

from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.runner import Case, write_csv
from benchmarks.accuracy.scripts.affine_batch import at_batch
from benchmarks.accuracy.xmem import TRANSFORMERS, cases
from benchmarks.tables import table
from vramcast.core.brief import every_field
from vramcast.core.errors import VramcastError
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job
from vramcast.simulator.card import Card
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.portable_tracers import CPU

BATCHES: Final = (2, 3, 5)  # arbitrary: small, above 1 (whose tensors broadcast), and unevenly spaced
TIMEOUT_S: Final = 120.0  # arbitrary: for one run on a busy machine; a slower row is left out and counted
SEED: Final = 0  # arbitrary
_ANY_CARD: Final = device("a100-40gb")
# Parameters of the models that may exceed the RAM, in millions; the others stay below 0.4.
# spec: their published configs.
_LARGE: Final = {"pythia": 1012, "Qwen3-0.6B": 596, "DeepSeek": 1777, "Qwen3-4B": 4022, "Llama": 3213, "gemma": 2614}


def ram_gib(case: Case) -> float:
    """Return the size of weights, gradients, and Adam's two states and temporaries in GiB; 0 for small models."""
    millions = next((n for name, n in _LARGE.items() if name in case.facts["model"]), 0)
    copies = 3 if case.facts["optimizer"] in ("SGD", "Adafactor") else 7
    return millions * 1e6 * 4 * copies / 2**30


class Tracer:
    """Tracer of each distinct job: rows differ in the batch and in cards with the same cuBLAS workspaces."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[int, Trace] | VramcastError] = {}

    def at(self, case: Case) -> Trace:
        """Return the trace of `case` at its own batch, or raise the error that prevented it."""
        key = every_field(replace(case.job, device=_ANY_CARD, memory_bytes=None).with_batch(1))
        if key not in self._kept:
            try:
                jobs = {n: case.job.with_batch(n) for n in BATCHES}
                self._kept[key] = {n: _trace(job) for n, job in jobs.items()}
            except VramcastError as error:
                self._kept[key] = error
        kept = self._kept[key]
        if isinstance(kept, VramcastError):
            raise kept
        return at_batch(kept, int(case.facts["batch"]))


def _trace(job: Job) -> Trace:
    trace = CPU.trace(job, timeout_s=TIMEOUT_S).trace
    assert trace is not None
    return trace


def _row(tracer: Tracer, case: Case) -> dict[str, object]:
    facts = case.facts
    row: dict[str, object] = {name: facts[name] for name in ("model", "optimizer", "batch", "zero_grad_mode", "family")}
    started = time.perf_counter()
    environment = {"VRAMCAST_CUDNN_DIR": os.devnull}
    if facts["family"] != "cnn":
        environment["PYTHONPATH"] = f"{TRANSFORMERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with mock.patch.dict(os.environ, environment):
        trace = tracer.at(case)
    seconds = time.perf_counter() - started
    # As in `vramcast.Estimator.estimate_job`: the result on the card if the job fits, else its need.
    needed = simulate(trace, columns=False)
    ending = simulate(trace, card=Card(case.job.total_bytes, case.options.context_bytes), columns=False)
    return {
        **row,
        "gpu": facts["device"],
        "real_oom": facts["real_oom"] == "True",
        "measured_bytes": case.measured_bytes,
        "estimate_bytes": (ending if ending.fits else needed).reserved,
        "xmem_bytes": facts.get("xmem_bytes", ""),
        "xmem_seconds": facts.get("xmem_seconds", ""),
        "seconds": seconds,
        "simulate_seconds": time.perf_counter() - started - seconds,
    }


def run(
    *, n_rows: int | None, ram_limit_gib: float, limit_s: float = float("inf")
) -> tuple[list[dict[str, object]], dict[str, int]]:
    """Return the figures of each row and the number of rows left out by reason; write build/accuracy/cpu_xmem.csv."""
    chosen = cases()
    if n_rows is not None:
        chosen = random.Random(SEED).sample(chosen, min(n_rows, len(chosen)))
    tracer, rows, left_out = Tracer(), [], Counter[str]()
    end = time.perf_counter() + limit_s
    for at, case in enumerate(chosen):
        if time.perf_counter() > end:
            left_out["the time was up"] += len(chosen) - at
            break
        if ram_gib(case) > ram_limit_gib:
            left_out[f"more than {ram_limit_gib:.0f} GiB of RAM"] += 1
            continue
        try:
            rows.append(_row(tracer, case))
        except VramcastError as error:
            left_out[f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"] += 1
            print(f"[{at + 1}/{len(chosen)}] {case.name}: {error}", file=sys.stderr, flush=True)
            continue
        ratio = float(str(rows[-1]["estimate_bytes"])) / case.measured_bytes - 1
        print(f"[{at + 1}/{len(chosen)}] {case.name}: {100 * ratio:+.2f} %", file=sys.stderr, flush=True)
    write_csv("cpu_xmem", rows)
    return rows, dict(left_out)


def report(rows: list[dict[str, object]], left_out: dict[str, int]) -> str:
    """Return the tables as Markdown: error by card and family on the same rows, time, rows left out."""
    ended = [row for row in rows if not row["real_oom"] and row["xmem_bytes"] not in ("", "0")]
    groups = {f"{row['gpu']} {row['family']}": [] for row in sorted(ended, key=lambda r: (str(r["gpu"]), str(r["family"])))}
    for row in ended:
        groups[f"{row['gpu']} {row['family']}"].append(row)
    lines = []
    for title, of_group in {**groups, "all": ended}.items():
        for tool, column in (("vramcast, CPU tracer", "estimate_bytes"), ("xMem", "xmem_bytes")):
            pairs = [(float(str(row[column])), float(str(row["measured_bytes"]))) for row in of_group]
            lines.append([title, tool, *summarize(pairs).cells()])
    traced = sorted(seconds for row in rows if (seconds := float(str(row["seconds"]))) > 1)
    text = [table(["rows", "tool", *SUMMARY_COLUMNS], lines)]
    if traced:
        text.append(
            f"{len(traced)} distinct jobs were traced on {len(BATCHES)} batches: median {traced[len(traced) // 2]:.0f} s, "
            f"longest {traced[-1]:.0f} s."
        )
    text += [f"left out: {count} rows, {reason}" for reason, count in left_out.items()]
    return "\n\n".join(text)


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, help="take a random sample of ROWS rows")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no new row after MINUTES")
    default_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 * 0.6  # arbitrary: room for the rest
    parser.add_argument("--gib", type=float, default=default_gib, help="largest RAM for a job's state")
    options = parser.parse_args()
    print(report(*run(n_rows=options.rows, ram_limit_gib=options.gib, limit_s=60 * options.minutes)))


if __name__ == "__main__":
    _main()
