"""The CPU tracer's client: failures of the job's process become errors, and the caller's process stays untouched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import JobError, UsageError, WorkerError
from vramcast.jobs.job import Command, Job
from vramcast.tracer.portable_tracers import CPU
from vramcast.tracer.protocol.job_result import Result

Run = Callable[..., Result]


def test_raising_model_is_job_error_with_traceback(on_cpu: Run) -> None:
    with pytest.raises(JobError, match="RuntimeError: the model is broken") as caught:
        on_cpu("Raises", batch="8x16")
    assert "in forward" in caught.value.job_traceback


def test_killed_process_is_worker_error(on_cpu: Run) -> None:
    with pytest.raises(WorkerError, match=r"killed by SIGKILL: it was probably out of memory\.\nlast words"):
        on_cpu("Dies", batch="8x16")


def test_stops_slow_job(on_cpu: Run) -> None:
    with pytest.raises(WorkerError, match="did not end within 8 s on the CPU: raise the limit"):
        on_cpu("Sleeps", batch="8x16", timeout_s=8.0)


def test_wrong_target_is_usage_error(on_cpu: Run) -> None:
    with pytest.raises(UsageError, match="has no 'nothing'"):
        on_cpu("nothing", batch="8x16")


def test_rejects_script(make_job: Callable[..., Job]) -> None:
    with pytest.raises(UsageError, match="runs models, not scripts"):
        CPU.trace(make_job(command=Command(("train.py",))), timeout_s=60.0)


def test_result_names_tracer_and_torch(on_cpu: Run) -> None:
    result = on_cpu("wide", batch="64x1024", labels="64x1024", optimizer="adam")
    assert (result.status, result.steps) == ("ok", 3)
    assert result.trace is not None
    header: dict[str, Any] = result.trace.header
    assert (header["tracer"], header["torch"], header["device"]) == ("cpu", result.torch, "a100-40gb")
    assert "peaks" not in header
    assert result.max_resident_bytes > 0


def test_leaves_callers_modules_unchanged(on_cpu: Run, models: Path) -> None:
    from torch.optim import optimizer as optimizers

    before = optimizers._get_foreach_kernels_supported_devices  # type: ignore[attr-defined]
    on_cpu("wide", batch="64x1024", labels="64x1024", optimizer="adam")
    assert optimizers._get_foreach_kernels_supported_devices is before  # type: ignore[attr-defined]
    assert models.stem not in sys.modules
