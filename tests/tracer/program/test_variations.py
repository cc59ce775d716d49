"""A job's two variations in code, against scripts that do the same by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from vramcast.core.errors import JobError
from vramcast.jobs.job import Command, Job
from vramcast.tracer.program.variations import accumulate, checkpoint_blocks
from vramcast.tracer.protocol.job_result import Result

MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 512), torch.nn.Linear(512, 64)

    def forward(self, x, *, scale=1.0):
        return x + self.down(torch.relu(self.up(x))) * scale

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=2.0)
        return x
"""
# The loop of tracer/program/model_program.py, written out.
SCRIPT = """
from torch.utils.checkpoint import checkpoint

device = torch.device("cuda")
model = Net().to(device)
for path in {blocks}:
    block = model.blocks[path]
    def forward(x, *, scale, inner=block.forward):
        return checkpoint(lambda x: inner(x, scale=scale), x, use_reentrant=False)
    block.forward = forward
optimizer = torch.optim.AdamW(model.parameters())
x_host, y_host = torch.zeros({batch}, 64), torch.zeros({batch}, 64)
for i in range({batches}):
    if i % {every} == 0 and not {after_step}:
        optimizer.zero_grad()
    x, y = x_host.to(device), y_host.to(device)
    output = model(x)
    loss = torch.nn.functional.mse_loss(output, y)
    loss.backward()
    if i % {every} == {every} - 1:
        optimizer.step()
        if {after_step}:
            optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("variations") / "net.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def by_hand(trace: Callable[..., Result], model_file: Path) -> Callable[..., dict[str, int]]:
    """Return a function that gives the peaks of the script."""

    def run(*, blocks: tuple[int, ...] = (), batch: int = 8192, every: int = 1, after_step: bool = False) -> dict[str, int]:
        text = SCRIPT.format(blocks=blocks, batch=batch, every=every, batches=3 * every, after_step=after_step)
        script = model_file.with_name(f"script_{abs(hash(text))}.py")
        script.write_text(MODEL + text)
        result = trace(command=Command((str(script),)), steps=1000)
        assert result.trace is not None
        return dict(result.trace.header["peaks"])

    return run


@pytest.fixture
def job(make_job: Callable[..., Job], model_file: Path) -> Callable[..., Job]:
    def make(batch: int = 8192, **options: Any) -> Job:
        sizes = f"{batch}x64"
        options["search_path"] = tuple(sys.path)
        return make_job(target=f"{model_file}:Net", batch=sizes, labels=sizes, optimizer="adamw", **options)

    return make


def peaks(tracer: Callable[[], Any], job: Job) -> dict[str, int]:
    result = tracer().trace(job, timeout_s=300.0)
    assert result.trace is not None
    return dict(result.trace.header["peaks"])


def test_checkpointed_blocks_match_script(
    tracer: Callable[[], Any], job: Callable[..., Job], by_hand: Callable[..., dict[str, int]]
) -> None:
    none, some, all_ = by_hand(), by_hand(blocks=(0, 2)), by_hand(blocks=(0, 1, 2, 3))
    assert all_["allocated"] < some["allocated"] < none["allocated"]
    assert peaks(tracer, job())["allocated"] == none["allocated"]
    assert peaks(tracer, checkpoint_blocks(job(), ["blocks.0", "blocks.2"])) == some
    assert peaks(tracer, checkpoint_blocks(job(), [f"blocks.{i}" for i in range(4)])) == all_


@pytest.mark.parametrize("zero_grad", ["step-start", "after-step"])
def test_accumulated_batches_match_script(
    zero_grad: str, tracer: Callable[[], Any], job: Callable[..., Job], by_hand: Callable[..., dict[str, int]]
) -> None:
    made = accumulate(job(batch=4096, zero_grad=zero_grad))
    by_script = by_hand(batch=4096, every=2, after_step=zero_grad == "after-step")
    assert peaks(tracer, made) == by_script
    # Gradients of the first batch are live while the second one runs.
    assert by_script["allocated"] > by_hand(batch=4096, after_step=zero_grad == "after-step")["allocated"]


def test_two_batches_are_one_step(tracer: Callable[[], Any], job: Callable[..., Job]) -> None:
    result = tracer().trace(accumulate(job(steps=2)), timeout_s=300.0)
    assert result.steps == 2
    assert result.trace is not None
    assert set(result.trace.step.tolist()) == {-1, 0, 1}


def test_variations_combine(tracer: Callable[[], Any], job: Callable[..., Job]) -> None:
    both = accumulate(checkpoint_blocks(job(batch=4096), ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]))
    one = accumulate(job(batch=4096))
    assert peaks(tracer, both)["allocated"] < peaks(tracer, one)["allocated"]


def test_unknown_block_is_jobs_error(tracer: Callable[[], Any], job: Callable[..., Job]) -> None:
    with pytest.raises(JobError, match="no attribute `nothing`"):
        tracer().trace(checkpoint_blocks(job(), ["nothing.0"]), timeout_s=300.0)
