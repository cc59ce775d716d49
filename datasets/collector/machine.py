"""Machines for measured jobs: this machine's GPU, or the null GPU for a dry run. Each job has its own process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

from vramcast.datasets.run import DRY_RUN
from vramcast.hardware.device import Device
from vramcast.tracer.nullgpu.child.main import Program
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.processes.job_process import python_path, worker_command
from vramcast.tracer.processes.warm_worker import WarmWorker

_ADVICE = ": raise --job-timeout."


class RealGpu:
    """The card that torch finds on this machine; `measured_by` goes into the passports."""

    measured_by = "vramcast measure"

    def __init__(self) -> None:
        self._workers: dict[str, WarmWorker] = {}

    def run(self, module: str, argument: Any, timeout_s: float) -> Any:
        """Return the result of a module's `run_job(argument)`, run with torch and the card in a process of its own.

        Raises:
            TimeLimit: It did not end in time.
            WorkerError: Its process died.
        """
        # Packages that query the GPU at import must not initialize the driver, because the worker forks afterwards and a
        # driver does not survive a fork. With this setting torch answers from NVML.
        environment = {**os.environ, "PYTHONPATH": python_path(), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        worker = self._workers.get(module)
        if worker is None or not worker.is_alive:
            worker = self._workers[module] = WarmWorker(worker_command(module), environment)
        return worker.ask(argument, environment, timeout_s=timeout_s, advice=_ADVICE)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers.values():
            worker.close()


class DryRun:
    """The null GPU as `device`: the same collector and the same jobs, but its rows must never pass for measurements."""

    measured_by = DRY_RUN

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tracer: NullGpuTracer | None = None

    def run(self, module: str, argument: Any, timeout_s: float) -> Any:
        """Return the result of a module's `run_job(argument)`, run on the null GPU in a process of its own."""
        if self._tracer is None or not self._tracer.is_alive:
            self.close()
            self._tracer = NullGpuTracer()
        return self._tracer.run(Program(module, argument, self._device), timeout_s=timeout_s)

    def close(self) -> None:
        """End the processes."""
        if self._tracer is not None:
            self._tracer.close()


Machine: TypeAlias = RealGpu | DryRun
MakeMachine = Callable[[], Machine]
