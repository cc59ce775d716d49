"""Values which nobody knows: shapes and branches that depend on them, below and above the limit, and what reads them back.

Each answer is held against what the same program takes with real values, on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import value_programs
from benchmarks.hostile.case import Case, Verdict
from benchmarks.hostile.command import vramcast
from benchmarks.value_programs import PROGRAMS, TRUTH_MIB, WITHOUT_LARGEST
from vramcast.units import MIB

_SHAPES = "shapes which depend on values"
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


def _covers(truth_bytes: int, answer: dict[str, Any]) -> str:
    """Say what is wrong where neither the bound covers the truth nor the answer says that it does not."""
    bound = answer["upper_bound"]["bytes"] - answer["context_bytes"]
    return "" if bound >= truth_bytes else f"the bound is {bound} bytes beside the context, the truth {truth_bytes}"


def _program(name: str, rows: int, tracer: str) -> Verdict:
    truth_bytes = TRUTH_MIB[name][rows] * MIB
    arguments = ["check", f"{Path(value_programs.__file__)}:{name}", "--batch", f"{rows}x1024", "--on", "a100-40gb"]
    # 4 where no largest shape exists, and where the fake tracer knows no sparse tensors 3.
    codes = {4} if rows == max(TRUTH_MIB[name]) and name in WITHOUT_LARGEST else {0}
    if tracer == "fake" and name in ("coalesce", "to_sparse"):
        codes = {3}
    return vramcast(
        [*arguments, "--steps", "1", "--tracer", tracer, "--json"], codes=codes, check=functools.partial(_covers, truth_bytes)
    )


def _does_not_fit() -> Verdict:
    """A selection which, were it empty, would fit on the card by far."""
    arguments = ["check", f"{Path(value_programs.__file__)}:repeat_interleave", "--batch", "2048x1024", "--on", "rtx4060"]
    return vramcast([*arguments, "--json"], codes={1, 4})


def _names_what_is_drawn() -> Verdict:
    def check(answer: dict[str, Any]) -> str:
        return "" if answer["unknown_calls"] and answer["warnings"] else "nothing is named"

    target = f"{Path(value_programs.__file__)}:mask"
    return vramcast(["estimate", target, "--batch", "2048x1024", "--device", "a100-40gb", "--json"], codes={0}, check=check)


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases."""
    for name in PROGRAMS:
        for rows in (512, 2048):
            for tracer in ("nullgpu", "fake"):
                yield Case(_SHAPES, f"{name}, {rows} rows, {tracer}", functools.partial(_program, name, rows, tracer))
    yield Case(_SHAPES, "a selection which does not fit", _does_not_fit)
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
