"""Blocks shared by several streams are freed at once on a fast card, and on a slow one after the host has waited."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.hardware.stack import release_of
from vramcast.jobs.text import JobText
from vramcast.tracer.format.ledger import CallHandling
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

MIB = 1 << 20
# A block of a side stream is used four times on the job's own stream; the host waits after the third.
SHARED = """
    import sys, torch
    torch.zeros(1, device="cuda")
    side = torch.cuda.Stream()
    for i in range(4):
        with torch.cuda.stream(side):
            block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        if sys.argv[1] == "shared":
            block.record_stream(torch.cuda.current_stream())
        del block
        if i == 2:
            torch.cuda.synchronize()
"""
DDP = """
    import os, torch, torch.distributed as dist
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()  # waits for all outstanding work
"""


@pytest.fixture
def run(tracer: Callable[[], NullGpuTracer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that traces a script on a fast or a slow card."""
    monkeypatch.chdir(tmp_path)

    def traced(script: str, *words: str, slow: bool = False) -> Result:
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        result = tracer().trace(JobText(command=("train.py", *words), until="end").job(device("h100")), RunOptions(slow=slow))
        assert result.status == "ok", result.message
        return result

    return traced


def _peaks(result: Result) -> tuple[int, int]:
    assert result.trace is not None
    peaks = result.trace.header["peaks"]
    return peaks["allocated"], peaks["reserved"]


def _is_decided(result: Result) -> bool:
    return any(entry.kind is CallHandling.SPEED for entry in result.ledger)


def test_frees_shared_block_after_host_wait(run: Callable[..., Result]) -> None:
    fast, slow = run(SHARED, "shared"), run(SHARED, "shared", slow=True)
    assert _is_decided(fast)
    assert _peaks(slow)[1] - _peaks(fast)[1] == 2 * 64 * MIB
    alone = run(SHARED, "own")
    assert not _is_decided(alone)
    assert _peaks(alone) == _peaks(run(SHARED, "own", slow=True))


def test_estimate_has_fast_and_slow_card(
    tracer: Callable[[], NullGpuTracer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(DDP))

    def answered(bracket: bool | None) -> Estimate:
        command = ("torchrun", "--nproc_per_node=2", "train.py")
        return Estimator("h100", tracer(), bracket=bracket).command(command, ranks=(0,), until="end")

    both, again, fast = answered(None), answered(True), answered(False)
    said = both.to_dict()["streams"]
    assert said == again.to_dict()["streams"]
    assert said["speed_decides"]
    # torch since 2.15 drops a collective's tensors when the host waits for it, whether or not its watchdog has seen the end
    is_newer = (release_of(version("torch")) or (2, 15)) >= (2, 15)
    assert (said["slow"]["allocated"] > said["fast"]["allocated"]) is not is_newer
    assert (both.allocated, both.reserved) == (fast.allocated, fast.reserved)
    assert both.upper_bound >= fast.upper_bound
    assert fast.to_dict()["streams"]["slow"] is None
    assert any("--bracket" in text for text in fast.warnings)
    assert "on a slow card" in both.details()


def test_synchronization_covers_newest_stream(probe: Callable[..., tuple[dict[str, Any], Result]]) -> None:
    # torch makes all its streams at once, so a stream made by the program is newer.
    said, _ = probe(
        """
        import ctypes
        torch.cuda.Stream()
        newest = ctypes.c_void_p()
        torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(newest))
        event = torch.cuda.Event()
        event.record(torch.cuda.ExternalStream(newest.value))
        before = event.query()
        torch.cuda.synchronize()
        note(before=before, after=event.query())
        """,
        slow=True,
    )
    assert said == {"before": False, "after": True}
