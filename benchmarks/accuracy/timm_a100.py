"""GPUMemNet's timm runs on an A100-40GB: process bytes, a seeded sample of 150 clean rows.

    python -m benchmarks.accuracy.timm_a100 [--fresh] [--limit N]

The job is timm_script.py: timm's train.py with its defaults, which the published sheet does not state. That script lets
cuDNN search for the fastest plans in its first step, for fractions of a second each; the sheet's peaks were sampled once a
second. So the estimate is the reserved peak from the second step on; the table also has the peak with the searches. The
estimate uses the card's own size if the job fits there, as `vramcast.Estimator.estimate_job` does, else the job's need. The
context is one constant, the median of measured - reserved.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import defaultdict
from dataclasses import replace
from typing import Final

import numpy as np

from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.runner import Answer, Case, Variant, arguments, read_rows, run_cases, write_csv
from benchmarks.accuracy.scripts import timm_script
from benchmarks.tables import table
from vramcast.core.units import GIB, MIB
from vramcast.hardware import stack
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.jobs.job import Command, Job, TensorSpec, Training
from vramcast.tracer.protocol.run_options import RunOptions

# spec: the project's scripts are of September 2024; the sheet does not state its torch. All torch releases of 2024 come with a
# cuDNN that cannot answer without a GPU, and get the same answers.
STACK: Final = stack.parse("torch==2.4.1")
CONTEXT_BYTES: Final = context_bytes("a100-40gb", 11, ("cublas", "cudnn")).bytes  # measured: context of GPUMemNet's runs
SAMPLE: Final = 150  # arbitrary
SEED: Final = 0  # arbitrary
CRASHED_MARGIN_MIB: Final = 1400  # spec: the sheet's screen; a run that trained shows at least its context above FakeTensor
_OUTSTANDING: Final = 2.0  # arbitrary: a visible search takes several times the rest
_ABOVE: Final = 1.05  # arbitrary: assumed accuracy of a search's peak
CENSORED_BYTES: Final = round(37.5e9)  # spec: the same; near 40 GB the allocator releases and cuDNN falls back


def clean_rows(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows of models that show no sign of a crash (see the two constants) and whose memory grows with the batch."""
    of_model: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        of_model[row["model"]].append(row)
    clean = []
    for series in of_model.values():
        largest = 0.0
        for row in sorted(series, key=lambda row: int(row["batch"])):
            gib = float(row["gib"])
            fake = re.search(r"faketensor_est_MiB=([0-9.]+)", row["extra"])
            grows = gib > largest
            largest = max(largest, gib)
            if (
                grows
                and "SUSPECT" not in row["extra"]
                and fake is not None
                and gib * 1024 > float(fake[1]) + CRASHED_MARGIN_MIB
                and gib * GIB < CENSORED_BYTES
            ):
                clean.append(row)
    return clean


def size_of(row: dict[str, str]) -> tuple[int, int, int]:
    """Return channels, height, and width of the images for a row's model."""
    import timm  # type: ignore[import-untyped,unused-ignore]

    config = timm.get_pretrained_cfg(row["model"])
    channels, height, width = config.input_size if config is not None else (3, 224, 224)
    return channels, height, width


def plain_job(row: dict[str, str]) -> Job:
    """Return the row's model as a job that trains it, without the extras of timm's script: for other people's tools."""
    batch = int(row["batch"])
    return Job(
        device("a100-40gb"),
        target=f"timm:{row['model']}",
        batch=TensorSpec((batch, *size_of(row))),
        labels=TensorSpec((batch,), "int64", high=1000),
        training=Training(
            optimizer="sgd:momentum=0.9,nesterov=true",
            zero_grad="after-step",  # spec: timm 1.0 train.py
        ),
    )


def case_of(row: dict[str, str]) -> Case:
    """Return the job of a measured row."""
    described = {"model": row["model"], "batch": int(row["batch"]), "size": list(size_of(row))}
    job = Job(
        device("a100-40gb"),
        command=Command((timm_script.__file__, json.dumps(described))),
        training=Training(steps=timm_script.STEPS),
        search_path=tuple(sys.path),
        stack=STACK,
    )
    facts = {**row, "optimizer": "sgdm"}
    options = RunOptions(context_bytes=CONTEXT_BYTES)
    return Case(f"{row['model']} {row['batch']}", job, round(float(row["gib"]) * GIB), facts, options)


def cases() -> list[Case]:
    """Return the sample."""
    return [case_of(row) for row in random.Random(SEED).sample(clean_rows(read_rows("timm_a100.csv")), SAMPLE)]


def answers_to(of: list[Case], variant: Variant, *, fresh: bool) -> list[Answer]:
    """Return the answers on the card's own size, and on an unlimited card for jobs that do not fit."""
    answers = run_cases(of, variant, fresh=fresh)
    outside = [i for i, answer in enumerate(answers) if answer.status == "oom"]
    endless = [replace(of[i], options=replace(of[i].options, limited=False)) for i in outside]
    for i, answer in zip(outside, run_cases(endless, variant, fresh=fresh), strict=True):
        answers[i] = answer
    return answers


def run(*, fresh: bool = False, limit: int | None = None) -> list[dict[str, object]]:
    """Return a row of figures for each case; write build/accuracy/timm_a100.csv."""
    chosen = cases()[:limit]
    answers = answers_to(chosen, Variant("timm"), fresh=fresh)
    plain = answers_to(chosen, Variant("timm, no cuDNN", oracle=False), fresh=fresh)
    rows: list[dict[str, object]] = [
        {
            "model": case.facts["model"],
            "batch": case.facts["batch"],
            "status": answer.status,
            "measured_bytes": case.measured_bytes,
            "reserved_bytes": answer.settled,
            "searching_bytes": answer.reserved,
            "no_workspace_bytes": without.reserved,
            "cudnn_calls": answer.cudnn_calls,
            "message": answer.message or without.message,
        }
        for case, answer, without in zip(chosen, answers, plain, strict=True)
    ]
    write_csv("timm_a100", rows)
    return rows


def context_of(rows: list[dict[str, object]], column: str) -> int:
    """Return the median of measured - `column`, in bytes."""
    return int(np.median([int(str(row["measured_bytes"])) - int(str(row[column])) for row in rows]))


def saw_search(row: dict[str, object]) -> bool:
    """Return whether the sheet's sample caught a search: more than twice the peak without, and not above the one with it."""
    measured, settled, searching = (int(str(row[name])) for name in ("measured_bytes", "reserved_bytes", "searching_bytes"))
    return _OUTSTANDING * (settled + CONTEXT_BYTES) < measured < _ABOVE * (searching + CONTEXT_BYTES)


def report(rows: list[dict[str, object]]) -> str:
    """Return the table as Markdown."""
    usable = [row for row in rows if row["status"] == "ok" and row["no_workspace_bytes"]]
    lines = []
    for name, column in (
        ("with workspaces", "reserved_bytes"),
        ("with workspaces, searches too", "searching_bytes"),
        ("no workspaces", "no_workspace_bytes"),
    ):
        constant = context_of(usable, column)
        pairs = [(int(str(row[column])) + constant, int(str(row["measured_bytes"]))) for row in usable]
        lines.append([name, f"{constant / MIB:.0f} MiB", *summarize(pairs).cells()])
    failed = [f"{row['model']} {row['batch']}: {row['message']}" for row in rows if row not in usable]
    return "\n".join([table(["estimate", "context", *SUMMARY_COLUMNS], lines), f"\nFailed: {len(failed)}.", *failed])


if __name__ == "__main__":
    options = arguments(__doc__)
    print(report(run(fresh=options.fresh, limit=options.limit)))
