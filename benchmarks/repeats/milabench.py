"""milabench's training staircases: one network at many batch sizes on H100, L40S and H200, by the device's NVML figure.

    python -m benchmarks.repeats milabench [--sample N]

A row runs the project's own script at the row's commit with the arguments of config/base.yaml. The figure is the largest of
NVML's "used" memory of the device, which the project reads every 0.1 to 3 seconds. The allocator keeps its segments, so this is
the reserved peak with the context, the libraries, NCCL's buffers, and the memory that the driver withholds: the difference
between the card's size in nvidia-smi and in torch. It differs by up to 0.2 GiB between drivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Final

from benchmarks.accuracy.runner import Case
from benchmarks.measured.measured_run import MeasuredRun, runs_of
from benchmarks.repeats.packages import packages, project, search_path
from benchmarks.repeats.scripts import milabench_script
from vramcast.hardware import stack
from vramcast.hardware.cards import device
from vramcast.jobs.commands.reading import read
from vramcast.jobs.job import Command, Job, Training

REPOSITORY: Final = "mila-iqia/milabench"
# spec: .pin/constraints-cuda-torch.txt of the commits
STACK: Final = stack.parse("torch==2.6.0+cu126,cudnn==9.5.1.17")
CARDS: Final = {"H100 80GB": "h100", "L40S": "l40s", "H200": "h200"}
# spec: config/slurm.yaml, "tamia-single-node" of the commit with the H100's rows, and "single-node-full-L40S"
RANKS: Final = {"H100 80GB": 4, "L40S": 4}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark of the project.

    Attributes:
        folder: Its folder.
        arguments: Those of config/base.yaml that decide its memory.
        packages: Those that it needs in addition, at the versions of its requirements.cuda.txt.
        code: The repository and commit of code that it fetches, as its benchfile.py does.
    """

    folder: str
    arguments: Mapping[str, str]
    packages: tuple[str, ...] = ()
    code: tuple[str, str] | None = None


# spec: config/base.yaml, requirements.cuda.txt and benchfile.py of the benchmarks
_IMAGES: Final = {"--epochs": "1", "--data": "."}
_RESNET: Final = {**_IMAGES, "--model": "resnet50", "--precision": "tf32-fp16", "--optim": "channel_last"}
_CONVNEXT: Final = {**_IMAGES, "--model": "convnext_large"}
_HUB: Final = ("transformers==4.49.0", "tokenizers==0.21.0", "huggingface-hub==0.29.3")
_LIGHTNING: Final = Benchmark("lightning", {**_IMAGES, "--model": "resnet152"}, ("lightning==2.5.0.post0",))
_DIFFUSION: Final = Benchmark("diffusion", {}, (*_HUB, "diffusers==0.32.2", "accelerate==1.5.1", "argklass==1.4.4"))
_JEPA: Final = Benchmark("vjepa", {}, code=("facebookresearch/jepa", "3081b0ad7b9651373ccef40c1d46b62f46cb7146"))
BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "resnet50": Benchmark("torchvision", {**_RESNET, "--loader": "pytorch"}),
    "resnet50-noio": Benchmark("torchvision", {**_RESNET, "--loader": "synthetic_fixed"}),
    "convnext_large-fp32": Benchmark("torchvision", {**_CONVNEXT, "--precision": "fp32"}),
    "convnext_large-fp16": Benchmark("torchvision", {**_CONVNEXT, "--precision": "fp16"}),
    "convnext_large-tf32": Benchmark("torchvision", {**_CONVNEXT, "--precision": "tf32"}),
    "convnext_large-tf32-fp16": Benchmark("torchvision", {**_CONVNEXT, "--precision": "tf32-fp16"}),
    "regnet_y_128gf": Benchmark("torchvision", {**_IMAGES, "--model": "regnet_y_128gf", "--precision": "tf32-fp16"}),
    "resnet152-ddp-gpus": Benchmark("torchvision_ddp", {**_IMAGES, "--model": "resnet152"}),
    "lightning": _LIGHTNING,
    "lightning-gpus": _LIGHTNING,
    "whisper": Benchmark("huggingface", {"--model": "Whisper", "--precision": "tf32-fp16", "--num-workers": "0"}, _HUB),
    "diffusion-single": _DIFFUSION,
    "diffusion-gpus": _DIFFUSION,
    "vjepa-single": _JEPA,
    "vjepa-gpus": _JEPA,
}
_ALIKE: Final = 2  # arbitrary: two sizes may round to the same segments
_BATCH: Final = {"diffusion": "--batch_size", "vjepa": "--batch_size"}  # the others have --batch-size


def is_of_several_cards(run: MeasuredRun) -> bool:
    """Return whether a row's job has a rank on each card of the machine."""
    return run.job.endswith("-gpus")


def runs() -> list[MeasuredRun]:
    """Return all rows."""
    return runs_of(REPOSITORY)


@cache
def figures() -> Counter[tuple[str, str, int]]:
    """Return how many batch sizes of a job have a figure on a card."""
    alike = {(run.job, run.card, run.measured_bytes, run.batch) for run in runs()}
    return Counter((job, card, figure) for job, card, figure, _ in alike)


def has_stopped_early(run: MeasuredRun) -> bool:
    """Return whether other batch sizes of a job have the same figure: the runs ended before their first step."""
    return figures()[run.job, run.card, run.measured_bytes] > _ALIKE


def case_of(run: MeasuredRun) -> Case | str:
    """Return the job of a row, or the reason why it is not repeated."""
    benchmark = BENCHMARKS.get(run.job)
    if benchmark is None or run.card not in CARDS:
        return f"{run.job}: no harness yet, or the card is not named"
    if run.quality == "screened" or run.card_bytes is None:
        return run.reason
    if has_stopped_early(run):
        return f"{run.job}: several batch sizes have the same figure, so their runs ended before the first step"
    if is_of_several_cards(run) and run.card not in RANKS:
        return f"{run.job}: the number of cards of {run.card} is not known"
    card = device(CARDS[run.card])
    folders = sorted({f"benchmarks/{each.folder}" for each in BENCHMARKS.values()})
    theirs = project(REPOSITORY, run.commit, *folders, "benchmate/benchmate")
    folder = theirs / "benchmarks" / benchmark.folder
    fetched = [project(*benchmark.code, "src", "app")] if benchmark.code is not None else []
    arguments = {_BATCH.get(benchmark.folder, "--batch-size"): str(run.batch), **benchmark.arguments}
    words = (milabench_script.__file__, str(folder / "main.py"), str(run.batch), *chain.from_iterable(arguments.items()))
    program = Command(words)
    if is_of_several_cards(run):
        program = replace(read(("torchrun", f"--nproc-per-node={RANKS[run.card]}", *words), {}), ranks=(0,))
    job = Job(
        card,
        command=program,
        training=Training(steps=3),
        search_path=search_path(packages("torchcompat==1.1.4", *benchmark.packages), theirs / "benchmate", folder, *fetched),
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
