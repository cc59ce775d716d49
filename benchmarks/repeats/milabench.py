"""milabench's training staircases: one network at many batch sizes on H100, L40S and H200, by the device's NVML figure.

    python -m benchmarks.repeats milabench [--sample N]

A row runs the project's own script at the row's commit with the arguments of config/base.yaml. NVML's figure counts the memory
that the driver withholds: the difference between the card's size in nvidia-smi and in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.accuracy.runner import Case
from benchmarks.measured.measured_run import MeasuredRun, runs_of
from benchmarks.repeats.packages import packages, project, search_path
from benchmarks.repeats.scripts import milabench_script
from vramcast.hardware import stack
from vramcast.hardware.cards import device
from vramcast.jobs.job import Command, Job, Training

REPOSITORY: Final = "mila-iqia/milabench"
# spec: .pin/constraints-cuda-torch.txt of the commits
PACKAGES: Final = ("torchcompat==1.1.4", "lightning==2.5.0.post0")
STACK: Final = stack.parse("torch==2.6.0+cu126,cudnn==9.5.1.17")
CARDS: Final = {"H100 80GB": "h100", "L40S": "l40s", "H200": "h200"}
# spec: config/base.yaml
_RESNET: Final = {"--model": "resnet50", "--precision": "tf32-fp16", "--optim": "channel_last"}
_CONVNEXT: Final = {"--model": "convnext_large"}
ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "resnet50": {**_RESNET, "--loader": "pytorch"},
    "resnet50-noio": {**_RESNET, "--loader": "synthetic_fixed"},
    "convnext_large-fp32": {**_CONVNEXT, "--precision": "fp32"},
    "convnext_large-fp16": {**_CONVNEXT, "--precision": "fp16"},
    "convnext_large-tf32": {**_CONVNEXT, "--precision": "tf32"},
    "convnext_large-tf32-fp16": {**_CONVNEXT, "--precision": "tf32-fp16"},
    "regnet_y_128gf": {"--model": "regnet_y_128gf", "--precision": "tf32-fp16"},
    "lightning": {"--model": "resnet152"},
}
FOLDERS: Final = {"lightning": "lightning"}  # the others are in torchvision


def runs() -> list[MeasuredRun]:
    """Return all rows."""
    return runs_of(REPOSITORY)


def case_of(run: MeasuredRun) -> Case | str:
    """Return the job of a row, or the reason why it is not repeated."""
    arguments = ARGUMENTS.get(run.job)
    if arguments is None or run.card not in CARDS:
        return f"{run.job}: no harness yet, or the card is not named"
    if run.quality == "screened" or run.card_bytes is None:
        return run.reason
    card = device(CARDS[run.card])
    folder = f"benchmarks/{FOLDERS.get(run.job, 'torchvision')}"
    theirs = project(REPOSITORY, run.commit, "benchmarks/torchvision", "benchmarks/lightning", "benchmate/benchmate")
    words = [
        word for pair in {**arguments, "--batch-size": str(run.batch), "--epochs": "1", "--data": "."}.items() for word in pair
    ]
    script = str(theirs / folder / "main.py")
    job = Job(
        card,
        command=Command((milabench_script.__file__, script, str(run.batch), *words)),
        training=Training(steps=3),
        search_path=search_path(packages(*PACKAGES), theirs / "benchmate"),
        stack=STACK,
    )
    facts = {
        "group": run.model,
        "family": run.job,
        "stack": f"milabench {run.card}",
        "optimizer": run.optimizer.partition(" ")[0].lower(),
    }
    described = {"model": run.model, "batch": str(run.batch), "gpu": run.card}
    return Case(run.job, job, run.measured_bytes, {**facts, **described, "outside": str(run.card_bytes - card.total_bytes)})
