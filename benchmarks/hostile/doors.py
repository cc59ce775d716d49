"""Comparison of evaluated and served bounds of jobs at the four entry points, with a made-up truth; and learned examples.

The entry points are `vramcast.estimate(model, batch)`, `vramcast estimate TARGET`, `vramcast run` and `vramcast evaluate`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.hostile.case import Case, Verdict, Wrong
from benchmarks.hostile.command import LIMIT_S, ROOT, judge, vramcast
from vramcast.core.units import MIB
from vramcast.datasets.journal import Journal
from vramcast.datasets.run import Measurement, Passport, Run, Workload
from vramcast.learner import artifact, training
from vramcast.learner.conformal import Calibration
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES
from vramcast.learner.model import Head, LearnedModel
from vramcast.learner.stacks import StackContext

CARD: Final = "rtx3060"
STACK: Final = "rtx3060, 580"  # the name of a machine for a run with these two facts
CONTEXT_BYTES: Final = 700 * MIB
PROMISED: Final = ("0.9", "0.95", "0.99")
SIGMA: Final = 0.10  # error of the models with convolutions; the others are exact
MODELS: Final = 1000  # arbitrary: of each kind; enough to make the calibration's own spread small
DRAWS: Final = 2000  # arbitrary: new runs per entry point
_NETS: Final = """
import torch
from torch import nn
def mlp(width=512): return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 10))
def cnn(width=32):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))
"""
_SCRIPT: Final = """
import sys, torch, nets
model = getattr(nets, sys.argv[1])().cuda()
optimizer = torch.optim.Adam(model.parameters())
shape = [int(side) for side in sys.argv[2].split("x")]
inputs, labels = torch.zeros(shape), torch.zeros(shape[0], dtype=torch.int64)
for _ in range(9):
    optimizer.zero_grad()
    x, y = inputs.to("cuda"), labels.to("cuda")
    output = model(x)
    loss = torch.nn.functional.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
"""
_CALL: Final = """
import json, sys, torch, vramcast, nets
shape = [int(side) for side in sys.argv[2].split("x")]
batch = torch.zeros(shape), torch.zeros(shape[0], dtype=torch.int64)
found = vramcast.estimate(getattr(nets, sys.argv[1])(), batch, device=sys.argv[3], artifact=sys.argv[4])
print(json.dumps(found.to_dict()))
"""
JOBS: Final = (("mlp", "256x512"), ("mlp", "4096x512"), ("cnn", "32x3x64x64"), ("cnn", "8x3x128x128"))
DOORS: Final = ("estimate(model, batch)", "TARGET", "run")
Check = Callable[[dict[str, Any]], str]


def cases(folder: Path) -> Iterator[Case]:
    """Yield the cases of this group."""
    (folder / "nets.py").write_text(_NETS)
    (folder / "train.py").write_text(_SCRIPT)
    (folder / "call.py").write_text(_CALL)
    made_up = folder / "made-up"
    artifact.save(_made_up(np.random.default_rng(0)), made_up)
    for name, shape in JOBS:
        first: dict[str, Any] = {}
        for door in DOORS:
            check = _same_as(first)
            yield Case("doors: one bound", f"{name} {shape} by {door}", _asked(door, folder, name, shape, made_up, check))
    for door in DOORS:
        yield Case("doors: coverage", door, _asked(door, folder, "cnn", "32x3x64x64", made_up, _covers))
    yield Case("doors: coverage", "evaluate", lambda: _evaluated(folder, made_up))
    yield from _learned_from(folder)


def _made_up(random: np.random.Generator) -> LearnedModel:
    """Return an artifact of models without convolutions, simulated exactly, and of as many with an error of 10 %."""
    examples = []
    for number in range(2 * MODELS):
        features = dict.fromkeys(NAMES, 0.0) | {"count_convolution": float(number % 2)}
        peak = round(1000 * MIB * math.exp(random.normal(0, SIGMA) if number % 2 else 0.0))
        one = Example(str(number), str(number), "", CARD, STACK, features, MIB, 1000 * MIB, measured_reserved=peak)
        examples.append(one)
    context = StackContext(CONTEXT_BYTES, CONTEXT_BYTES, CONTEXT_BYTES, 9, CARD)
    empty = LearnedModel(Head(None, Calibration.empty()), contexts={STACK: context})
    empty.card = {"runs": 0, "groups": 0, "censored": 0, "seed": 0, "folds": 0, "parameters": {}, "by": {}}
    return training.recalibrated(empty, examples)


def _asked(door: str, folder: Path, name: str, shape: str, made_up: Path, check: Check) -> Callable[[], Verdict]:
    """Return a function that requests a job's estimate through an entry point and checks the answer."""
    common = ["--device", CARD, "--artifact", str(made_up), "--json"]
    labels = f"{shape.partition('x')[0]}:int64"

    def ask() -> Verdict:
        if door == "TARGET":
            target = ["estimate", f"{folder}/nets.py:{name}", "--batch", shape, "--labels", labels]
            return vramcast([*target, *common], codes={0}, check=check)
        if door == "run":
            return vramcast(["run", *common, "--", str(folder / "train.py"), name, shape], codes={0, 4}, check=check)
        return _called([str(folder / "call.py"), name, shape, CARD, str(made_up)], check)

    return ask


def _called(command: list[str], check: Check) -> Verdict:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Verdict(Wrong.HANG, f"did not end within {LIMIT_S:.0f} s")
    return judge(done.returncode, done.stdout, done.stderr, codes={0}, check=check, is_json=True)


def _same_as(first: dict[str, Any]) -> Check:
    """Return a function that compares an answer's bounds with those of the first entry point."""

    def check(found: dict[str, Any]) -> str:
        of_first = first.setdefault("quantiles", found["quantiles"])
        return "" if found["quantiles"] == of_first else f"bounds {found['quantiles']}, at another entry point {of_first}"

    return check


def _covers(found: dict[str, Any]) -> str:
    """Check an answer's bounds with new runs of the same job, drawn from the truth."""
    residuals = np.random.default_rng(1).normal(0, SIGMA, DRAWS)
    peaks = found["peaks"]["reserved"] * np.exp(residuals) + CONTEXT_BYTES
    return _judged({level: float((peaks <= found["quantiles"][level]).mean()) for level in PROMISED}, DRAWS)


def _judged(coverage: dict[str, float], n: int) -> str:
    """Return the coverages further from their level than chance explains, for `n` runs and the calibration."""
    wrong = []
    for level, share in coverage.items():
        promised = float(level)
        spread = math.sqrt(promised * (1 - promised) * (1 / n + 1 / MODELS))
        if abs(share - promised) > 4 * spread + 1 / MODELS:
            wrong.append(f"{100 * share:.1f} % at {level}")
    return ", ".join(wrong)


def _runs(folder: Path, name: str, n: int) -> str:
    """Write `n` made-up runs of the job and return the file."""
    random = np.random.default_rng(2)
    reserved = int((folder / "reserved").read_text())
    path = folder / f"{name}.jsonl"
    workload = Workload("cnn", "cnn", f"{folder}/nets.py:cnn", batch=("32x3x64x64",), labels="32:int64")
    with Journal(path) as lines:
        for number in range(n):
            peak = round(reserved * math.exp(random.normal(0, SIGMA)))
            measured = Measurement("ok", reserved_bytes=peak, process_bytes=peak + CONTEXT_BYTES)
            lines.append(Run(f"{name} {number}", workload, Passport("made up", gpu=CARD, driver="580"), measured).to_dict())
    return str(path)


def _evaluated(folder: Path, made_up: Path) -> Verdict:
    """Check the answer of `evaluate` for made-up runs, after estimating their simulated peak."""

    def note(found: dict[str, Any]) -> str:
        (folder / "reserved").write_text(str(found["peaks"]["reserved"]))
        return ""

    asked = _asked("TARGET", folder, "cnn", "32x3x64x64", made_up, note)()
    if not asked.is_handled:
        return asked

    def check(found: dict[str, Any]) -> str:
        return _judged({level: found["coverage"][level] for level in PROMISED}, DRAWS)

    command = ["evaluate", _runs(folder, "judged", DRAWS), "--trust-targets", "--artifact", str(made_up), "--json"]
    return vramcast(command, codes={0}, check=check)


# ------------------------------------------------------------------------------------------------ learned examples
def _learned_from(folder: Path) -> Iterator[Case]:
    """Yield examples that must not be reused: a fallback's answer, and those of another vramcast."""
    cache = folder / "cache"
    kept = cache / "examples.jsonl"

    def trained(**environment: str | None) -> Verdict:
        command = ["train", _runs(folder, "few", 6), "--trust-targets", "--out", str(folder / "mine"), "--json"]
        return vramcast(command, codes={0}, environment={"VRAMCAST_CACHE": str(cache), **environment})

    def fallback() -> Verdict:
        verdict = trained(CC="/no/such/cc")
        if verdict.is_handled and kept.exists() and kept.read_text().strip():
            return Verdict(Wrong.NUMBER, "what a fallback tracer estimated is kept")
        return verdict

    def again() -> Verdict:
        verdict = trained()
        tracers = {json.loads(line)["tracer"] for line in kept.read_text().splitlines()} if verdict.is_handled else set()
        return verdict if not verdict.is_handled or tracers == {"nullgpu"} else Verdict(Wrong.NUMBER, f"kept of {tracers}")

    def renamed() -> Verdict:
        kept.write_text(kept.read_text().replace('"log_allocations"', '"log_requests"'))
        return trained()

    def torn() -> Verdict:
        kept.write_text(kept.read_text()[:-40])
        return trained()

    yield Case("learned examples", "estimated without a compiler", fallback)
    yield Case("learned examples", "the compiler is back", again)
    yield Case("learned examples", "features of another vramcast", renamed)
    yield Case("learned examples", "a torn file", torn)
