"""GPUMemNet's random MLPs on an A100-40GB: process MiB, a seeded sample of 300.

    python -m benchmarks.accuracy.gpumemnet_mlp [--fresh] [--limit N]

float32, Adam, cross-entropy, as the file names state. nvidia-smi includes the context: one constant per file, the median of
measured - reserved, is reported and is the only number fitted to the rows.

The training loop is mlp_script.py. The runs used a PyTorch of 2024, which allocates 1 MiB for cuBLASLt in each `addmm` and
frees it; torch 2.11 keeps it. Under torch 2.6 the same script shows the older behaviour: docs/accuracy.md has both.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from typing import Final

import numpy as np

from benchmarks.accuracy.runner import Case, Variant, arguments, read_rows, run_cases, write_csv
from benchmarks.accuracy.scripts import mlp_script
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.hardware.cards import device
from vramcast.jobs.job import Command, Job, Training
from vramcast.tracer.protocol.run_options import RunOptions

SAMPLE: Final = 300  # arbitrary: about eight minutes
SEED: Final = 0  # arbitrary
FILES: Final = ("gpumemnet_mlp_step1.csv", "gpumemnet_mlp_step2.csv")


def is_broken(row: dict[str, str]) -> bool:
    """Return whether the run crashed: one output class, or batch norm over a last batch of one sample."""
    last_batch = mlp_script.batch_sizes(int(_number(row, "batch")))[-1]
    return int(_number(row, "output")) == 1 or (last_batch == 1 and "batch_normalization" in row["Activations-Params"])


def _number(row: dict[str, str], name: str) -> str:
    match = re.search(rf"(?:^|_){name}:([0-9.]+)(?=_|\.out)", row["Filename"])
    assert match is not None, row["Filename"]
    return match[1]


def case_of(row: dict[str, str], file: str) -> Case:
    """Return the job of a measured row."""
    layers = tuple((str(name), int(size)) for name, size, _ in ast.literal_eval(row["Activations-Params"]))
    features, batch = (int(_number(row, name)) for name in ("input", "batch"))
    dropout = float(_number(row, "dropout")) if "_dropout:" in row["Filename"] else 0.0
    described = {"features": features, "batch": batch, "dropout": dropout, "layers": layers}
    job = Job(
        device("a100-40gb"),
        command=Command((mlp_script.__file__, json.dumps(described))),
        # One epoch with its short last batch, and two full batches after it.
        training=Training(steps=len(mlp_script.batch_sizes(batch)) + 2),
        search_path=tuple(sys.path),
    )
    return Case(
        row["Filename"],
        job,
        int(row["Max GPU Memory (MiB)"]) * MIB,
        {"file": file, "batch": str(batch), "elements": str(batch * features)},
        RunOptions(limited=False),
    )


def cases() -> list[Case]:
    """Return the sample."""
    rows = [(row, file) for file in FILES for row in read_rows(file) if not is_broken(row)]
    return [case_of(row, file) for row, file in random.Random(SEED).sample(rows, SAMPLE)]


def run(*, fresh: bool = False, limit: int | None = None) -> list[dict[str, object]]:
    """Return a row of figures for each case; write build/accuracy/gpumemnet_mlp.csv."""
    chosen = cases()[:limit]
    answers = run_cases(chosen, Variant("mlp"), fresh=fresh)
    rows: list[dict[str, object]] = [
        {
            "file": case.facts["file"],
            "name": case.name,
            "status": answer.status,
            "measured_mib": case.measured_bytes // MIB,
            "reserved_mib": answer.reserved // MIB,
            "offset_mib": (case.measured_bytes - answer.reserved) // MIB,
            "message": answer.message,
        }
        for case, answer in zip(chosen, answers, strict=True)
    ]
    write_csv("gpumemnet_mlp", rows)
    return rows


def context_mib(rows: list[dict[str, object]]) -> int:
    """Return the median of measured - reserved."""
    return int(np.median([int(str(row["offset_mib"])) for row in rows]))


def report(rows: list[dict[str, object]]) -> str:
    """Return the table as Markdown."""
    lines = []
    for file in (*FILES, "both"):
        of_file = [row for row in rows if row["status"] == "ok" and file in (row["file"], "both")]
        if of_file:
            lines.append([file, len(of_file), *_figures(of_file)])
    return table(["rows", "n", "context", "exact to the MiB", "within 2 MiB", "within 22 MiB", "max", "MAPE"], lines)


def _figures(rows: list[dict[str, object]]) -> list[str]:
    constant = context_mib(rows)
    miss = np.abs(np.array([int(str(row["offset_mib"])) for row in rows]) - constant)
    measured = np.array([int(str(row["measured_mib"])) for row in rows])
    shares = [f"{100 * float(np.mean(miss <= limit)):.1f} %" for limit in (0, 2, 22)]
    return [f"{constant} MiB", *shares, f"{miss.max()} MiB", f"{100 * float(np.mean(miss / measured)):.3f} %"]


if __name__ == "__main__":
    options = arguments(__doc__)
    print(report(run(fresh=options.fresh, limit=options.limit)))
