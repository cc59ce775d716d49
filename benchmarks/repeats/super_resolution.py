"""traiNNer-redux's super-resolution networks: inference, the allocated peak to the byte, on an RTX 4090 under Windows.

    python -m benchmarks.repeats super_resolution [--sample N]

A row runs the project's own measuring function at the row's commit. The release of spandrel, which has half of the networks, is
the newest at the date of that commit.
"""

from __future__ import annotations

import json
from typing import Final

from benchmarks.accuracy.runner import BUILD, Case
from benchmarks.measured.measured_run import MeasuredRun, runs_of
from benchmarks.repeats.packages import packages, project, search_path
from benchmarks.repeats.scripts import super_resolution_script
from vramcast.hardware import stack
from vramcast.hardware.cards import device
from vramcast.jobs.job import Command, Job, Training

REPOSITORY: Final = "the-database/traiNNer-redux"
PACKAGES: Final = (
    "spandrel==0.4.0", "spandrel_extra_arches==0.2.0", "einops==0.8.0", "msgspec==0.19.0", "opencv-python-headless==4.10.0.84",
    "pyvips==2.2.3", "pyvips-binary==8.16.0", "cffi", "pycparser", "rich==13.9.4", "requests", "tensorboard",
    "protobuf", "absl-py",
)  # fmt: skip
# spec: pyproject.toml of the commit wants torch >= 2.5.0 for CUDA 12.1; 2.5.1 was the newest, with cuDNN 9.1.0
STACK: Final = stack.parse("torch==2.5.1+cu121,cudnn==9.1.0")
CARD: Final = "rtx4090"


def runs() -> list[MeasuredRun]:
    """Return all rows."""
    return runs_of(REPOSITORY)


def case_of(run: MeasuredRun) -> Case | str:
    """Return the job of a row."""
    printed = BUILD / f"printed-{run.key}.json"
    described = {
        "name": run.model,
        "scale": run.options["scale"],
        "channels_last": run.options["memory_format"] == "channels_last",
        "printed": str(printed),
    }
    theirs = project(REPOSITORY, run.commit, "traiNNer", "scripts/benchmarking")
    job = Job(
        device(CARD),
        command=Command((super_resolution_script.__file__, json.dumps(described))),
        training=Training(mode="infer"),
        search_path=search_path(packages(*PACKAGES), theirs, theirs / "scripts" / "benchmarking"),
        stack=STACK,
    )
    layout = "channels_last" if described["channels_last"] else "NCHW"
    facts = {"group": run.model, "family": layout, "stack": "RTX 4090, Windows", "model": run.model, "batch": "1"}
    return Case(run.model, job, run.measured_bytes, {**facts, "printed": str(printed)})
