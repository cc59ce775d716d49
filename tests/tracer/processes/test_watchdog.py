"""Collectives hold their tensors until PyTorch's watchdog has run: peaks do not depend on the speed of this machine."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.hardware.cards import device
from vramcast.jobs.text import JobText
from vramcast.tracer.nullgpu.client import NullGpuTracer

# Buckets of the first step are replaced in the second one.
TRAIN = """
    import sys, time, torch
    torch.distributed.init_process_group("nccl")
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(float(sys.argv[1]))
"""


def test_peaks_are_independent_of_machine_speed(
    tracer: Callable[[], NullGpuTracer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    monkeypatch.chdir(tmp_path)
    found = set()
    for wait_s in ("0", "0", "0.3"):  # without the wait, one run in two had an additional copy of the parameters
        command = ("torchrun", "--nproc_per_node=1", "train.py", wait_s)
        result = tracer().trace(JobText(command=command, until="end").job(device("a100-40gb")))
        assert result.status == "ok", result.message
        assert result.trace is not None
        found.add((result.trace.header["peaks"]["allocated"], result.trace.header["peaks"]["reserved"]))
    assert len(found) == 1
