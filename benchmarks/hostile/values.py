"""Unknown values: shapes and branches that depend on them, below and above the limit, and operators that read them back.

Each answer is compared with the memory of the same program with real values, on the CPU.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.command import vramcast
from benchmarks.surveys import value_programs
from benchmarks.surveys.value_programs import PROGRAMS, TRUTH_MIB, WITHOUT_LARGEST
from vramcast.core.errors import CannotEstimate
from vramcast.core.units import MIB
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training

_SHAPES = "shapes that depend on values"
_PROGRAMS = Path(value_programs.__file__)
_MODELS = """
import torch
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

def lazy():
    return nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(4))

def exported():
    return torch.export.export(mlp(), (torch.zeros(16, 16),)).module()

class Eig(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
    def forward(self, x):
        return torch.linalg.eig(self.linear(x))[0].abs()
"""
_SCRIPT = """
import torch
torch.set_default_device("cuda")
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).mean().backward()
    optimizer.step()
"""


def _program(name: str, rows: int, tracer: str) -> Verdict:
    """Compare the bound of one program with the truth, in this process, whose worker is warm."""
    batch = TensorSpec((rows, 1024))
    training, path = Training(steps=1), tuple(sys.path)
    job = Job(target=f"{_PROGRAMS}:{name}", batch=batch, device=device("a100-40gb"), training=training, search_path=path)
    try:
        found = Estimator(tracer=tracer).uncorrected(job)
    except CannotEstimate as error:  # the fake tracer knows no sparse tensors
        is_due = tracer == "fake" and name in ("coalesce", "to_sparse")
        return HANDLED if is_due else Verdict(Wrong.EXIT_CODE, str(error)[:200])
    truth_bytes = TRUTH_MIB[name][rows] * MIB + found.context.bytes
    if found.upper_bound < truth_bytes:
        return Verdict(Wrong.NUMBER, f"the bound is {found.upper_bound} bytes, the truth {truth_bytes}")
    if bool(found.unbounded_calls) != (rows == max(TRUTH_MIB[name]) and name in WITHOUT_LARGEST):
        return Verdict(Wrong.UNCLEAR, f"open calls: {found.unbounded_calls}")
    return HANDLED


def _has_no_bound() -> Verdict:
    """Check that a job without a maximum shape gets no bound, even without --strict."""
    arguments = ["check", f"{_PROGRAMS}:bincount", "--batch", "2048x1024", "--on", "a100-40gb", "--json"]
    return vramcast(arguments, codes={4}, says="no largest size")


def _does_not_fit() -> Verdict:
    """Check that a selection does not fit although an empty one would fit easily."""
    arguments = ["check", f"{_PROGRAMS}:repeat_interleave", "--batch", "2048x1024", "--on", "rtx4060"]
    return vramcast([*arguments, "--json"], codes={1, 4})


def _names_what_is_drawn() -> Verdict:
    def check(answer: dict[str, Any]) -> str:
        return "" if answer["unknown_calls"] and answer["warnings"] else "nothing is named"

    target = f"{_PROGRAMS}:mask"
    return vramcast(["estimate", target, "--batch", "2048x1024", "--device", "a100-40gb", "--json"], codes={0}, check=check)


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases."""
    for name in PROGRAMS:
        for rows in (512, 2048):
            for tracer in ("nullgpu", "fake"):
                yield Case(_SHAPES, f"{name}, {rows} rows, {tracer}", functools.partial(_program, name, rows, tracer))
    yield Case(_SHAPES, "a selection that does not fit", _does_not_fit)
    yield Case(_SHAPES, "no largest shape", _has_no_bound)
    yield Case(_SHAPES, "what is drawn is named", _names_what_is_drawn)
    models, script = folder / "models.py", folder / "script.py"
    models.write_text(_MODELS)
    script.write_text(_SCRIPT)
    for name, optimizer in (("lazy", "adam"), ("exported", "adam"), ("mlp", "lbfgs")):
        yield Case(
            "unusual models", f"{name} with {optimizer}",
            functools.partial(
                vramcast,
                ["estimate", f"{models}:{name}", "--batch", "16x16", "--optimizer", optimizer, "--tracer", "nullgpu", "--json"],
                codes={0},
            ),
        )  # fmt: skip
    eig = ["estimate", f"{models}:Eig", "--batch", "16x16", "--tracer", "nullgpu", "--json"]
    yield Case("operators", "linalg.eig", functools.partial(vramcast, eig, codes={0}))
    run = ["run", "--device", "a100-40gb", "--json", "--", str(script)]
    yield Case("torch.cuda.* calls in a script", "set_default_device and Adam", functools.partial(vramcast, run, codes={0}))
