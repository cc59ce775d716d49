"""Inference of detectors by va-bench: a JSON file a run, with torch's allocated peak.

Its authors' own runs are in a repository with a license. What others submit is in one without: those rows stay outside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.measured.cells import traits
from benchmarks.measured.collectors.checkout import Checkout
from benchmarks.measured.measured_run import MeasuredRun
from vramcast.core.units import MIB

REPOSITORY = "LibreYOLO/vision-analysis-benchmark"
SUBMISSIONS = "LibreYOLO/vision-analysis"


def runs(checkout: Checkout) -> Iterator[MeasuredRun]:
    """Yield the runs of va-bench's authors with PyTorch on a card."""
    for folder in ("results_full_gpu", "results_parity"):
        yield from _runs_in(folder, REPOSITORY, "Apache-2.0", checkout)


def submissions(checkout: Checkout) -> Iterator[MeasuredRun]:
    """Yield the submitted runs with PyTorch on a card."""
    yield from _runs_in("submissions", SUBMISSIONS, "", checkout)


def _runs_in(folder: str, repository: str, licence: str, checkout: Checkout) -> Iterator[MeasuredRun]:
    for path in checkout.paths(folder):
        if "__pytorch__cuda__" in path:
            result = json.loads(checkout.text(path))
            if result["memory"]["peak_vram_mb"]:
                yield replace(run_of(result, checkout.commit, path), repository=repository, licence=licence)


def run_of(result: dict[str, dict[str, object]], commit: str, path: str) -> MeasuredRun:
    """Return the run of a file of va-bench's own repository."""
    model, config, software, data = (result[part] for part in ("model", "config", "software", "dataset"))
    options = {
        "libreyolo": software["libreyolo"],
        "libreyolo_commit": software["libreyolo_commit"],
        "max_det": config["max_det"],
        "images": data["num_images"],
    }
    return MeasuredRun(
        repository=REPOSITORY,
        commit=commit,
        path=path,
        licence="Apache-2.0",
        job=f"va-bench run --models {model['id']}",
        model=str(model["id"]),
        figure="allocated peak",
        value_bytes=round(float(str(result["memory"]["peak_vram_mb"])) * MIB),
        unit_rule="MiB, one decimal",
        quality="repeatable",
        batch=int(str(config["batch_size"])),
        sizes=f"3x{config['input_size']}x{config['input_size']}",
        precision=str(result["runtime"]["precision"]),
        optimizer="none",
        options={name: value for name, value in options.items() if value != "unknown"},
        traits=traits(convolutions=True),
        cards=1,
        card=str(result["hardware"]["gpu"]),
        torch=str(software["torch"]),
        cuda=str(result["hardware"]["cuda_version"]),
    )
