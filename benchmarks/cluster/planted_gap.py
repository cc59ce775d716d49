"""Adoption of a history with a planted gap, and of one without: is it found, corrected, and named?

    python -m benchmarks.cluster.planted_gap [--jobs 400]
    python -m benchmarks.cluster.planted_gap --depthwise [--seed 0]      # needs python -m benchmarks.repeats.variation

The jobs are small networks, each traced once. In the exact history, each process peak is the estimate. In the other one, the
context is 300 MiB larger, and a library keeps workspaces: a share of the largest block for jobs with convolutions, none for
the others. The table has the errors of process peaks: as estimated, and on models held out with the adopted artifact.

With `--depthwise`, cuDNN takes 64 MiB more for each depthwise layer of drawn networks; half of them have such layers. The
table has errors, widths and coverage on models held out, by number of runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.accuracy.figures import summarize
from benchmarks.repeats.variation import PATH
from benchmarks.speed.adoption import traced
from benchmarks.tables import table
from vramcast.adoption.pipeline import AdoptOptions, adopt
from vramcast.core.units import MIB
from vramcast.datasets.run import Workload
from vramcast.learner import artifact, examples, training
from vramcast.learner.examples import Example
from vramcast.learner.table import subject_of

DEPTHWISE_BYTES: Final = 64 * MIB  # spec: the planted gap of a depthwise layer
RUNS: Final = (40, 100, 400)  # spec: histories from which it is learned
LEVEL: Final = 0.9
_JUDGED: Final = 0.3  # arbitrary: share of the models that judge
CONTEXT_BYTES: Final = 300 * MIB  # spec: the planted gap of the context
WORKSPACE_SHARE: Final = 0.5  # arbitrary: of the largest block
_NETWORKS: Final = "vramcast.datasets.workloads.networks"
_COLUMNS: Final = (
    *("id", "name", "target", "batch", "labels", "optimizer", "gpu", "gpu_total_bytes", "gpus", "torch", "driver"),
    *("process_bytes", "status", "censored", "seconds"),
)
_MACHINE: Final = {"gpu": "NVIDIA H200", "gpu_total_bytes": 150_754_820_096, "gpus": 1, "torch": "2.11.0", "driver": "580.65"}


def workloads(jobs: int) -> list[Workload]:
    """Return the jobs: half of them perceptrons, half convolutional networks; two batch sizes of each."""
    found = []
    for number in range(jobs):
        model, size = number // 4, number // 2 % 2
        if number % 2:
            options = {"outputs": 10, "width": 32 + 16 * (model % 10), "stages": 3, "blocks": 1 + model // 10}
            name, batch = "cnn", f"{(16, 48)[size]}x3x96x96"
        else:
            options = {"inputs": 2048, "outputs": 10, "width": 2048 + 256 * (model % 20), "depth": 3 + model // 20}
            name, batch = "mlp", f"{(512, 2048)[size]}x2048"
        text = json.dumps(options, separators=(",", ":"))
        labels = f"{batch.partition('x')[0]}:int64<10"
        found.append(
            Workload(f"{name}-{model}", target=f"{_NETWORKS}:{name}?{text}", batch=(batch,), labels=labels, optimizer="adam")
        )
    return found


def gap_of(example: Example) -> int:
    """Return the planted gap of a job, in bytes."""
    share = WORKSPACE_SHARE if example.traits["operators"] == "convolution" else 0.0
    return CONTEXT_BYTES + round(share * example.features["largest_block_share"] * example.reserved)


def write_history(path: Path, jobs: Sequence[Workload], peaks: Sequence[int]) -> None:
    """Write a history as our plain table."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        for number, (job, peak) in enumerate(zip(jobs, peaks, strict=True)):
            said = {"id": number, "name": job.name, "target": job.target, "batch": " ".join(job.batch), "labels": job.labels}
            measured = {"process_bytes": peak, "status": "ok", "censored": "false", "seconds": 3600}
            writer.writerow({**said, "optimizer": job.optimizer, **_MACHINE, **measured})


def planted(seed: int) -> list[Example]:
    """Return traced networks, each with its planted peak: as many models with depthwise layers as without, in turn."""
    jobs = {one.id.rpartition(" ")[0]: one for one in examples.read(PATH)[0]}  # one of a job's two examples
    by_kind: dict[bool, dict[str, list[Example]]] = {True: {}, False: {}}
    for one in jobs.values():
        layers = one.features["count_depthwise"]
        peak = one.reserved + round(layers * DEPTHWISE_BYTES)
        by_kind[layers > 0].setdefault(one.group, []).append(replace(one, measured_reserved=peak))
    drawn = [random.Random(seed).sample(sorted(of), len(of)) for of in by_kind.values()]
    pairs = zip(*drawn, strict=False)
    return [one for pair in pairs for kind, name in zip(by_kind, pair, strict=True) for one in by_kind[kind][name]]


def of_depthwise(seed: int) -> list[list[object]]:
    """Return the errors, widths and coverage on models held out, by number of runs that were learned from."""
    found = planted(seed)
    lines: list[list[object]] = []
    models = list(dict.fromkeys(one.group for one in found))
    held = set(models[: round(_JUDGED * len(models))])
    known, judged = ([one for one in found if (one.group in held) == is_held] for is_held in (False, True))
    for n_runs in RUNS:
        some = known[:n_runs]
        learned = training.train(some)
        for name, has_layers in (("depthwise", True), ("others", False)):
            rows = [one for one in judged if (one.features["count_depthwise"] > 0) == has_layers]
            subjects = [subject_of(one, {}) for one in rows]
            measured = np.array([one.measured_reserved for one in rows], np.float64)
            bounds = np.array([learned.bounds(one, [LEVEL])[0].size_bytes for one in subjects])
            points = zip((learned.reserved(one) for one in subjects), measured.tolist(), strict=True)
            before = summarize((one.reserved, peak) for one, peak in zip(rows, measured.tolist(), strict=True))
            shares = (
                before.median,
                summarize(points).median,
                float(np.median(bounds / measured - 1)),
                float((bounds >= measured).mean()),
            )
            head = learned.reserved_head
            cells = [f"{100 * share:.1f} %" for share in shares]
            lines.append([n_runs, len({one.group for one in some}), name, len(rows), *cells, head.bounds, head.points])
    return lines


def main() -> None:
    """Print the table and the gaps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="of the draw of networks with --depthwise")
    parser.add_argument("--depthwise", action="store_true", help="plant 64 MiB for each depthwise layer instead")
    options = parser.parse_args()
    if options.depthwise:
        names = ["runs", "models", "judged jobs", "n", "median error, simulated", "corrected", f"bound over, {LEVEL}", "holds"]
        print(table([*names, "trees set bounds of", "correct the point of"], of_depthwise(options.seed)))
        return
    jobs = workloads(options.jobs)
    seen = traced(jobs)
    lines, named = [], []
    for name, gaps in (("exact", [0] * len(seen)), ("planted", [gap_of(example) for example in seen])):
        peaks = [example.reserved + example.context + gap for example, gap in zip(seen, gaps, strict=True)]
        with tempfile.TemporaryDirectory() as folder:
            history, site = Path(folder, "history.csv"), Path(folder, "site")
            write_history(history, jobs, peaks)
            facts = adopt(AdoptOptions((str(history),), str(site), keep="new"))
            learned = artifact.load(site)
        for family, errors in learned.card["by"].get("process", learned.card["by"]["reserved"])["family"].items():
            pairs = [(one.reserved + one.context, peak) for one, peak in zip(seen, peaks, strict=True)
                     if one.traits["operators"] == family]  # fmt: skip
            shares = (summarize(pairs).median, errors["simulated_median"], errors["corrected_median"], errors["corrected_p90"])
            lines.append([name, family, len(pairs), *(f"{100 * share:.2f} %" for share in shares)])
        held = ", ".join(f"{100 * share:.1f} % at {level}" for level, share in facts["gate"]["coverage"].items())
        named += [
            f"{name}: bounds hold for {held} of the models held out",
            *(f"{name}: {gap}" for gap in facts["gaps"] or ["no gap"]),
        ]
    columns = ("history", "jobs", "runs", "median error, estimated", "with the learned context", "corrected", "p90, corrected")
    print(f"{table(columns, lines)}\n\n" + "\n".join(named))


if __name__ == "__main__":
    main()
