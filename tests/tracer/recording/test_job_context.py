"""Job facts outside its operators, observed by every tracer for every kind of job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.estimates.estimator import Estimator
from vramcast.jobs.job import Command, Job, TensorSpec
from vramcast.tracer.format.trace import CIRCUMSTANCES
from vramcast.tracer.recording import job_context, recorder

pytestmark = pytest.mark.usefixtures("auto_tracer")
NETS = """
import torch
from torch.utils.checkpoint import checkpoint

class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)

def cnn(): return torch.nn.Conv2d(3, 4, 3)
"""
SCRIPT = """
import sys, torch, nets
class Double(torch.nn.Module):  # a transform of the data: without parameters, and not the model
    def forward(self, x): return 2 * x
model = nets.Checkpointed().cuda().half()
data = Double()(torch.zeros(5, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(data.to("cuda", torch.float16)).mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("circumstances")
    (path / "nets.py").write_text(NETS)
    (path / "train.py").write_text(SCRIPT)
    return path


@pytest.mark.parametrize("tracer", ["auto", "fake", "cpu"])
def test_all_tracers_observe_same_facts(tracer: str, folder: Path, make_job: Callable[..., Job]) -> None:
    job: dict[str, Any] = {"steps": 1, "labels": TensorSpec((2, 4, 6, 6)), "search_path": tuple(sys.path)}
    conv = make_job(target=f"{folder}/nets.py:cnn", batch="2x3x8x8", precision="amp-bf16", channels_last=True, **job)
    assert Estimator(tracer=tracer).uncorrected(conv).trace.header[CIRCUMSTANCES] == {
        "batch_size": 2,
        "input_elements": 384,
        "precision": "amp-bf16",
        "channels_last": True,
        "checkpointing": False,
        "cudnn_benchmark": False,
    }
    job["labels"] = None
    linear = make_job(target=f"{folder}/nets.py:Checkpointed", batch="5x16", precision="bf16", cudnn_benchmark=True, **job)
    assert Estimator(tracer=tracer).uncorrected(linear).trace.header[CIRCUMSTANCES] == {
        "batch_size": 5,
        "input_elements": 80,
        "precision": "bf16",
        "channels_last": False,
        "checkpointing": True,
        "cudnn_benchmark": True,
    }


def test_observes_facts_of_script(folder: Path, trace: Callable[..., Any]) -> None:
    result = trace(command=Command((str(folder / "train.py"),)), search_path=(str(folder), *sys.path), steps=2)
    seen = result.trace.header[CIRCUMSTANCES]
    assert (seen["batch_size"], seen["input_elements"], seen["precision"]) == (5, 80, "fp16")
    assert seen["checkpointing"]


def test_module_at_reused_address_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first attempt raises and leaves nothing; the next object at its address may have no parameters."""
    import torch

    for module in (job_context, recorder):
        monkeypatch.setattr(module, "id", lambda _: 7, raising=False)
    names = recorder._Modules()
    with job_context.Observer() as observer:
        failed = torch.nn.Linear(4, 4)
        names.add(failed, "failed")
        with pytest.raises(RuntimeError):
            failed(torch.zeros(2, 3))
        del failed
        activation = torch.nn.ReLU()
        activation(torch.zeros(2, 4))
        assert activation not in names
        torch.nn.Linear(5, 4)(torch.zeros(6, 5))
    assert (observer.seen()["batch_size"], observer.seen()["input_elements"]) == (6, 30)
