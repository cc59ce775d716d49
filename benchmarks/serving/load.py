"""Throughput of the service: stored answers, new jobs, and two hundred simultaneous clients.

    python -m benchmarks.serving.load [--kept] [--clients] [--distinct] [--seconds 600]

Service and clients share the machine. New jobs are models of torchvision and timm at small batches, in a seeded order; none is
requested twice.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.serving.running import Answers, Running, ask_all, message, running
from benchmarks.tables import table
from vramcast.core.units import gib

_SEED: Final = 0  # arbitrary
_KEPT: Final = 20_000  # arbitrary: number of requests
_CLIENTS: Final = 8  # arbitrary: clients for stored answers, one connection each
_MANY: Final = 200  # spec: the target number of simultaneous clients
_MODELS: Final = (
    *("torchvision:resnet18", "torchvision:resnet34", "torchvision:resnet50", "torchvision:mobilenet_v2", "torchvision:vgg11"),
    *("torchvision:squeezenet1_0", "torchvision:densenet121", "torchvision:shufflenet_v2_x1_0", "torchvision:alexnet"),
    *("timm:resnet18", "timm:resnet26", "timm:vit_tiny_patch16_224", "timm:deit_tiny_patch16_224", "timm:efficientnet_b0"),
    *("timm:mobilenetv3_small_100", "timm:mixer_s32_224", "timm:convnext_atto", "timm:regnetx_002", "timm:ghostnet_100"),
)
_OPTIMIZERS: Final = ("sgd", "sgdm", "adam", "adamw")
_DEVICES: Final = ("a100-40gb", "t4", "rtx4090", "h100", "a10")
_BATCHES: Final = (1, 2, 4, 8, 12, 16)


def job(target: str, batch: int, optimizer: str = "sgd", device: str = "a100-40gb") -> dict[str, Any]:
    """Return a request."""
    shapes = {"batch": [f"{batch}x3x224x224"], "labels": f"{batch}:int64<1000"}
    return {"target": target, **shapes, "optimizer": optimizer, "device": device, "wait_s": 300.0}


def jobs() -> Iterator[dict[str, Any]]:
    """Yield jobs, none twice."""
    every = list(itertools.product(_MODELS, _BATCHES, _OPTIMIZERS, _DEVICES))
    random.Random(_SEED).shuffle(every)
    return (job(*one) for one in every)


def quantile(seconds: list[float], level: float) -> float:
    """Return the time within which a share `level` of the answers arrived."""
    return sorted(seconds)[min(int(level * len(seconds)), len(seconds) - 1)]


def kept(service: Running) -> list[object]:
    """Return a row: stored answers per second, and their times."""
    text = message("/v1/checks", job("torchvision:resnet18", 8))
    asyncio.run(ask_all(service.port, [text], 1))
    began = time.perf_counter()
    found = asyncio.run(ask_all(service.port, [text] * _KEPT, _CLIENTS))
    return row("kept answers", found, time.perf_counter() - began, service)


def distinct(service: Running, seconds: float) -> list[object]:
    """Return a row: new jobs per second over `seconds`."""
    until = time.perf_counter() + seconds

    def messages() -> Iterator[bytes]:
        for one in jobs():
            if time.perf_counter() > until:
                return
            yield message("/v1/estimates", one)

    began = time.perf_counter()
    found = asyncio.run(ask_all(service.port, messages(), 4))  # type: ignore[arg-type]
    return row("new jobs", found, time.perf_counter() - began, service)


def many(service: Running) -> list[object]:
    """Return a row: 200 clients that request ten jobs at once, 20 clients each; every answer is compared."""
    ten = list(itertools.islice(jobs(), 10))
    texts = [message("/v1/estimates", one) for one in ten for _ in range(_MANY // len(ten))]
    random.Random(_SEED).shuffle(texts)
    began = time.perf_counter()
    found = asyncio.run(ask_all(service.port, texts, _MANY, keep=True))
    seconds = time.perf_counter() - began
    answers = Counter(json.loads(body)["id"] for body in found.bodies)
    wrong = len(set(found.bodies)) - len(answers)
    line = row(f"{_MANY} clients, {len(answers)} jobs", found, seconds, service)
    line[-1] = (
        f"{line[-1]}; {wrong} wrong, {_MANY - len(found.bodies)} lost, {sum(count != 20 for count in answers.values())} doubled"
    )
    return line


def row(name: str, found: Answers, seconds: float, service: Running) -> list[object]:
    """Return a row of the table."""
    good = sum(status == 200 for status in found.statuses)
    times = [f"{1000 * quantile(found.seconds, level):,.1f} ms" for level in (0.5, 0.99)]
    bad = ", ".join(f"{count} x {status}" for status, count in Counter(found.statuses).items() if status != 200)
    return [name, good, f"{good / seconds:,.1f}", *times, gib(service.resident_bytes()), bad or "-"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--clients", action="store_true")
    parser.add_argument("--distinct", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of the new jobs (default: 600)")
    options = parser.parse_args()
    every = not (options.kept or options.clients or options.distinct)
    lines = []
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), "--queue", "400") as service:
        if every or options.kept:
            lines.append(kept(service))
        if every or options.clients:
            lines.append(many(service))
        if every or options.distinct:
            lines.append(distinct(service, options.seconds))
    print(table(["what", "answers", "a second", "median", "p99", "memory", "others"], lines))


if __name__ == "__main__":
    main()
