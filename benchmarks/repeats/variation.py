"""Simulated variation: the same drawn jobs under two cuDNNs, to pre-train trees.

    python -m benchmarks.repeats.variation [--jobs 300] [--seconds 1200]
    python -m benchmarks.repeats.variation --compare      # does it help the bounds of measured runs?

Each job with convolutions is drawn as those of a measuring campaign are (`datasets/workloads`), for a card of cards.toml, with
a stack that has too old a cuDNN to query: then two others choose its plans. It gives two examples, one as if the job was
estimated with each of them, with the peak under the other one as the measured one, in build/accuracy/variation.jsonl.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Final

import numpy as np

from benchmarks.accuracy.runner import BUILD
from benchmarks.accuracy.shipped import permissive
from benchmarks.tables import table
from vramcast.core.errors import VramcastError
from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.sampling import Draw
from vramcast.datasets.workloads.workload_list import FAMILIES
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.learner_input import observed
from vramcast.hardware import stack
from vramcast.hardware.cards import DEVICES
from vramcast.learner import examples, gate, stacks, training
from vramcast.learner.conformal import LEVELS
from vramcast.learner.examples import Example
from vramcast.learner.model import Scope
from vramcast.learner.residual import ResidualQuantiles
from vramcast.learner.table import Table, folds_of, table_of

PATH: Final = BUILD / "variation.jsonl"
STACK: Final = stack.parse("torch==2.6.0")  # arbitrary: its cuDNN cannot be queried
_SHARES: Final = {"cnn": 2, "torchvision": 2, "timm": 5}  # arbitrary: of the families with convolutions
# arbitrary: the weights of simulated and of measured runs
CANDIDATES: Final = {"measured runs alone": (0.0, 1.0), "simulated variation": (1.0, 0.0), "both": (1.0, 3.0)}
_NETWORK: Final = re.compile(r"^.*:|\?.*$")  # the parts of a target before and after the network's name
_TIMEOUT_S: Final = 60.0  # arbitrary: slower jobs are left out


def drawn(seed: int) -> Iterator[tuple[str, Workload, str]]:
    """Yield jobs with convolutions: id, job, and the key of its card."""
    cards = sorted(DEVICES)
    for number in count():
        chosen = random.Random(f"{seed}-{number}")
        family = chosen.choices(list(_SHARES), list(_SHARES.values()))[0]
        yield f"variation {seed}-{number}", FAMILIES[family](Draw(seed, number)), chosen.choice(cards)


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


def candidates(measured: Table, varied: Table, seed: int = 0) -> dict[str, gate.Losses]:
    """Return the losses of bounds of measured runs, by what their trees learned from; a run's own model is always left out."""
    folds = folds_of(measured, training.FOLDS, seed)
    plain = gate.bound_losses(measured, np.zeros((len(measured.y), len(LEVELS))), folds).plain
    found = {}
    for name, (of_simulated, of_measured) in CANDIDATES.items():
        quantiles = np.zeros((len(measured.y), len(LEVELS)))
        for known, new in folds:
            rows = known[measured.can_teach[known] & ~measured.censored[known]]
            others = ~np.isin(varied.groups, measured.groups[new])
            weights = np.concatenate([of_simulated * varied.weights[others], of_measured * measured.weights[rows]])
            X = np.concatenate([varied.X[others], measured.X[rows]])[weights > 0]
            y = np.concatenate([varied.y[others], measured.y[rows]])[weights > 0]
            learner = ResidualQuantiles(random_state=seed).fit(X, y, sample_weight=weights[weights > 0])
            quantiles[new] = learner.predict_quantiles(measured.X[new])
        quantiles[~measured.has_features] = 0.0
        found[name] = gate.Losses(measured, plain, gate.bound_losses(measured, quantiles, folds).learned)
    return found


def comparison() -> str:
    """Return the change of the pinball loss of bounds at 0.9 and 0.95, against no trees, as a table."""
    varied = [replace(one, group=_NETWORK.sub("", one.group).lower()) for one in examples.read(PATH)[0]]
    measured = permissive()
    tables = table_of(measured, stacks.learn(measured)), table_of(varied, {})
    lines = [
        [name, family, gain.models, f"{100 * gain.change:+.1f} %", f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f} %"]
        for name, losses in candidates(*tables).items()
        for family, gain in losses.gains(Scope()).items()
    ]
    return table(["trees learn from", "family", "models", "change of the loss", "95 % of bootstraps"], lines)


def main() -> None:
    """Estimate the jobs that have no example yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no job after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", action="store_true", help="compare trees with and without these examples")
    options = parser.parse_args()
    if options.compare:
        print(comparison())
        return
    known = {one.id.rpartition(" ")[0] for one in examples.read(PATH)[0]} if PATH.exists() else set()
    started = time.perf_counter()
    for name, workload, card in islice(drawn(options.seed), options.jobs):
        if name in known or time.perf_counter() - started > options.seconds:
            continue
        try:
            examples.append(pair_of(name, workload, card), PATH)
        except VramcastError as error:
            print(f"{name} {workload.name}: {type(error).__name__}", flush=True)
    print(f"{len(examples.read(PATH)[0])} examples in {PATH}")


if __name__ == "__main__":
    main()
