"""A demo of Ray with four training jobs on one card: in parallel, in turn, refused, and queued again.

Ray, its queue and the estimates are real. The card is not: the jobs sleep, and one reports that it ran out of memory, as
torch would in a job that exceeds its share (torch.cuda.set_per_process_memory_fraction). Needs torchvision and Ray.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import Future
from functools import cache
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

import ray
from torchvision.models import resnet18, resnet50, vgg16

import vramcast
from vramcast.cluster import ray as sized
from vramcast.cluster.request import Request
from vramcast.core.units import GIB, gib

CARD = "rtx4060"
TRAINING_S = 3.0  # arbitrary: visible in the log
MODELS = {"resnet18": resnet18, "resnet50": resnet50, "vgg16": vgg16}


@cache
def estimated(log: str, name: str, batch: int, surprise_bytes: int = 0) -> vramcast.Estimate:
    """Return the estimate of a call of `train`, which has the same arguments."""
    images, labels = vramcast.TensorSpec((batch, 3, 224, 224)), vramcast.TensorSpec((batch,), "int64", high=1000)
    return vramcast.estimate(MODELS[name], (images, labels), optimizer="sgdm", precision="amp-bf16", device=CARD, level=0.95)


def told_again(before: Request, after: Request) -> None:
    """Log that a job is queued again."""
    note(log, f"again    {gib(before.size_bytes)} was too little: queued for {gib(after.size_bytes)}")


@sized.task(estimated, on_retry=told_again)
def train(log: str, name: str, batch: int, surprise_bytes: int = 0) -> str:
    """Train, which here means to wait; `surprise_bytes` is memory that the job takes beyond its estimate."""
    import torch

    share = float(ray.get_runtime_context().get_assigned_resources()["GPU"])
    note(log, f"start    {name}, batch {batch}, with {share:.4f} of the card")
    time.sleep(TRAINING_S)
    if share * vramcast.devices.device(CARD).total_bytes < surprise_bytes:
        note(log, f"full     {name}, batch {batch}")
        raise torch.OutOfMemoryError("CUDA out of memory.")
    note(log, f"end      {name}, batch {batch}")
    return name


def note(log: str, text: str) -> None:
    """Append a line with the time to the log."""
    with Path(log).open("a") as file:
        file.write(f"{time.time():.3f} {text}\n")


def queued(name: str, batch: int, surprise_bytes: int = 0) -> list[Future[str]]:
    """Queue a job if the card is large enough for it, and log its request."""
    try:
        request = train.request(log, name, batch, surprise_bytes)
    except vramcast.RequestRefused as error:
        print(f"refused  {name}, batch {batch}: {error}")
        return []
    print(f"queued   {name}, batch {batch}: {request}, num_gpus={request.share}")
    return [train.submit(log, name, batch, surprise_bytes)]


with tempfile.TemporaryDirectory() as folder:
    log = str(Path(folder) / "log")
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    began = time.time()
    jobs = [
        *queued("resnet18", 32),
        *queued("resnet50", 32),
        *queued("vgg16", 256),
        *queued("vgg16", 32),
        *queued("resnet18", 16, surprise_bytes=1 * GIB),
    ]
    for job in jobs:
        job.result()
    print()
    for line in Path(log).read_text().splitlines():
        at, _, text = line.partition(" ")
        print(f"{float(at) - began:5.1f} s  {text}")
    ray.shutdown()
