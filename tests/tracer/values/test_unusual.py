"""Jobs that read back a value other than a loss: they used to fail because they read zero."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.tracer.format.ledger import Code
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.portable_tracers import FAKE
from vramcast.tracer.protocol.job_result import Result

MODELS = """
import torch

def mlp(): return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
def exported(): return torch.export.export(mlp(), (torch.zeros(16, 16),)).module()
def on_default_device():
    torch.set_default_device("cuda")  # Adam's step counter lies on the card then
    return mlp()

class Eig(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
    def forward(self, x):
        return torch.linalg.eig(self.linear(x))[0].abs()

class Labels(torch.nn.Module):
    "Takes memory in proportion to the number of distinct labels."
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)
    def forward(self, x, labels):
        return self.linear(x).repeat(torch.bincount(labels).numel(), 1000)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "unusual.py"
    path.write_text(MODELS)
    return path


def job(models: Path, name: str, optimizer: str = "adam") -> Job:
    return Job(
        target=f"{models}:{name}", batch=TensorSpec((16, 16)), device=device("a100-40gb"),
        training=Training(steps=2, optimizer=optimizer),        search_path=tuple(sys.path),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "optimizer"), [("on_default_device", "adam"), ("exported", "adam"), ("Eig", "sgd"), ("mlp", "lbfgs")]
)
def test_traces_unusual_jobs(models: Path, name: str, optimizer: str, tracer: Callable[[], NullGpuTracer]) -> None:
    result = tracer().trace(job(models, name, optimizer))
    assert (result.status, result.steps) == ("ok", 2)


@pytest.mark.integration
def test_integer_batch_below_limit_has_distinct_values(models: Path) -> None:
    def peak(high: int | None) -> Result:
        batch = (TensorSpec((16, 16)), TensorSpec((1000,), "int64", high=high))
        training, path = Training(steps=1), tuple(sys.path)
        return FAKE.trace(Job(device("a100-40gb"), f"{models}:Labels", batch=batch, training=training, search_path=path))

    zeros, below_hundred = peak(None), peak(100)
    assert zeros.trace is not None
    assert below_hundred.trace is not None
    assert below_hundred.trace.peak_live()[0] - zeros.trace.peak_live()[0] > 90 * 16 * 4 * 1000 * 4
    assert not [entry for entry in below_hundred.ledger if entry.code is Code.DRAWN_SHAPE]
