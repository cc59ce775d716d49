"""Simulated variation: the same drawn jobs under two cuDNNs, to pre-train trees.

    python -m benchmarks.repeats.variation [--jobs 300] [--seconds 1200] [--seed 0] [--family cnn]

`benchmarks.accuracy.learning_curve` says whether it helps the bounds of measured runs.

Each job with convolutions is drawn as those of a measuring campaign are (`datasets/workloads`), for a card of cards.toml, with
a stack that has too old a cuDNN to query: then two others choose its plans. It gives two examples, one as if the job was
estimated with each of them, with the peak under the other one as the measured one, in build/accuracy/variation.jsonl.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Final

from benchmarks.accuracy.runner import BUILD
from vramcast.core.errors import VramcastError
from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.sampling import Draw
from vramcast.datasets.workloads.workload_list import FAMILIES
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.learner_input import observed
from vramcast.hardware import stack
from vramcast.hardware.cards import DEVICES
from vramcast.learner import examples
from vramcast.learner.examples import Example

PATH: Final = BUILD / "variation.jsonl"
STACK: Final = stack.parse("torch==2.6.0")  # arbitrary: its cuDNN cannot be queried
_SHARES: Final = {"cnn": 2, "torchvision": 2, "timm": 5}  # arbitrary: of the families with convolutions
_TIMEOUT_S: Final = 60.0  # arbitrary: slower jobs are left out


def drawn(seed: int, only: str | None = None) -> Iterator[tuple[str, Workload, str]]:
    """Yield jobs with convolutions, all or those of one family: id, job, and the key of its card."""
    cards = sorted(DEVICES)
    for number in count():
        chosen = random.Random(f"{seed}-{number}")
        family = only or chosen.choices(list(_SHARES), list(_SHARES.values()))[0]
        yield f"variation {only or ''}{seed}-{number}", FAMILIES[family](Draw(seed, number)), chosen.choice(cards)


def pair_of(name: str, workload: Workload, card: str) -> list[Example]:
    """Return the two examples of a job; none if one cuDNN chose its plans.

    Raises:
        VramcastError: It cannot be estimated.
    """
    found = Estimator(tracer="nullgpu", timeout_s=_TIMEOUT_S).uncorrected(workload.job(DEVICES[card], stack=STACK))
    other = found.larger_plans
    if other is None:
        return []
    alone = replace(found, larger_plans=None)
    changed = replace(alone, trace=other.trace, allocated=other.allocated, reserved=other.reserved, cudnn=other.cudnn)
    seen = [observed(one) for one in (alone, changed)]
    return [
        replace(
            own, id=f"{name} {own.cudnn}", group=workload.target or workload.name, family=workload.family or "",
            stack="variation", measured_reserved=its.reserved, other_cudnn=its.cudnn,
        )
        for own, its in (seen, seen[::-1])
    ]  # fmt: skip


def main() -> None:
    """Estimate the jobs that have no example yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no job after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=_SHARES, help="draw jobs of this family alone; generated ones are all different")
    options = parser.parse_args()
    known = {one.id.rpartition(" ")[0] for one in examples.read(PATH)[0]} if PATH.exists() else set()
    started = time.perf_counter()
    for name, workload, card in islice(drawn(options.seed, options.family), options.jobs):
        if name in known or time.perf_counter() - started > options.seconds:
            continue
        try:
            examples.append(pair_of(name, workload, card), PATH)
        except VramcastError as error:
            print(f"{name} {workload.name}: {type(error).__name__}", flush=True)
    print(f"{len(examples.read(PATH)[0])} examples in {PATH}")


if __name__ == "__main__":
    main()
