"""Jobs that profile themselves."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.hardware.cards import device
from vramcast.jobs.text import JobText
from vramcast.tracer.format.trace import Category
from vramcast.tracer.nullgpu.client import NullGpuTracer

SCRIPT = """
    import sys
    import torch

    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def train(stepped):
        for _ in range(3):
            model(torch.randn(64, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            stepped()

    def wrote(profile):
        assert len(profile.key_averages()) == 0
        profile.export_chrome_trace("profile.json")

    if "profiled" in sys.argv:
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
        with torch.profiler.profile(schedule=schedule, on_trace_ready=wrote) as profile:
            train(profile.step)
        with torch.autograd.profiler.emit_nvtx():
            pass
    else:
        train(lambda: None)
"""


def test_self_profiling_job_takes_same_memory(
    tracer: Callable[[], NullGpuTracer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    plain, profiled = (
        tracer().trace(JobText(command=("python", "train.py", word), until="end").job(device("h100")))
        for word in ("plain", "profiled")
    )
    assert plain.trace is not None
    assert profiled.trace is not None
    assert profiled.ended == ""
    assert profiled.trace.header["peaks"] == plain.trace.header["peaks"]
    assert (profiled.trace.category == Category.OPTIMIZER_STATE).any()  # our own profile was not ended
    assert json.loads((tmp_path / "profile.json").read_text()) == {"traceEvents": []}
