"""Runs one job on the CPU, in a process of its own: one job, then it is gone."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from vramcast.job import Job, TensorSpec, map_batch
from vramcast.tracer.imports import define_torchvision_operators
from vramcast.tracer.result import LedgerEntry, Result, peak_resident_bytes


def warm_up() -> None:
    """Import what every job needs."""
    import vramcast.tracer.cpu.as_cuda
    import vramcast.tracer.cpu.recorder
    import vramcast.tracer.step  # noqa: F401

    define_torchvision_operators()


def run_job(job: Job) -> Result:
    """Run `job` in this process, on the CPU, and return what came out; never raises for the job's own failures."""
    import torch

    from vramcast.tracer.convolution_workspaces import ConvolutionWorkspaces
    from vramcast.tracer.cpu.as_cuda import CudaRoutes
    from vramcast.tracer.cpu.recorder import Recorder

    define_torchvision_operators()
    sys.path[:] = [*job.search_path] or sys.path  # from here on the caller's; torch is this interpreter's own
    os.chdir(job.working_folder)
    result = Result("ok", torch=torch.__version__, cuda="none")
    workspaces = ConvolutionWorkspaces(job.device, job.total_bytes)
    capability, training = job.device.compute_capability, job.mode == "train"
    recorder = Recorder(capability=capability, training=training, convolution_workspaces=workspaces)
    try:
        with workspaces, CudaRoutes(), recorder:
            _run(job, recorder)
    except BaseException as error:  # the user's code may raise anything
        result.fail(error)
    result.steps = recorder.steps
    if result.status == "ok":
        result.trace = recorder.trace({"tracer": "cpu", "torch": torch.__version__, "device": job.device.key})
        result.ledger = _ledger(recorder.calls) + workspaces.ledger()
    result.max_resident_bytes = peak_resident_bytes()
    return result


def _ledger(calls: dict[str, int]) -> list[LedgerEntry]:
    """Return what a GPU's libraries would have been asked, and which answers nobody gave."""
    entries = []
    if "product" in calls:
        entries.append(LedgerEntry("noop", "cublas products", calls["product"], 0))
    if "recurrent layer" in calls:
        entries.append(LedgerEntry("assumed", "cudnn recurrent layers: as the CPU's", calls["recurrent layer"], 0))
    entries += [LedgerEntry("assumed", what, hits, 0) for what, hits in calls.items() if what.startswith("temporaries of ")]
    return entries


def _run(job: Job, recorder: Any) -> None:
    """Run the loop of all tracers with this one's model and batches put in."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    from vramcast.tracer import hollow, step

    build_model = step.build_model

    def build_with_storage(job: Job) -> torch.nn.Module:
        with _disable_current_modes():
            model = build_model(job)
            for tensor in [*model.parameters(), *model.buffers()]:
                if tensor.nbytes >= hollow.BIG_BYTES and tensor.is_floating_point():
                    _fill(tensor)
        recorder.hold(model)
        return model

    def host_batch(job: Job, batch: Any) -> Any:
        with _disable_current_modes():
            return map_batch(batch, lambda leaf: _values(job, leaf) if isinstance(leaf, TensorSpec) else leaf)

    def to_device(batch: Any, device: torch.device) -> Any:
        with _disable_current_modes():
            moved = map_batch(batch, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
        found: list[torch.Tensor] = []
        map_batch(moved, lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None)
        recorder.hold_inputs(found)
        return moved

    # This process runs one job and ends: the loop asks for these three by name.
    step.build_model, step.host_batch, step.to_device = build_with_storage, host_batch, to_device
    gc.collect()
    step.run(job, torch.device("cpu"))


def _fill(tensor: Any) -> None:
    """Give a hollow weight values: small and of both signs, so that nothing overflows and no branch meets a NaN."""
    import torch

    with torch.no_grad():
        tensor.uniform_(-0.02, 0.02)  # arbitrary: near the usual initial values


def _values(job: Job, spec: TensorSpec) -> Any:
    """Return a host tensor: as the batch states; else integers below its limit (without one 0), floats between 0 and 1."""
    from vramcast.tracer.step import host_tensor

    def write(tensor: Any) -> None:
        if spec.fill:
            tensor.fill_(spec.fill)
        elif tensor.is_floating_point():
            tensor.uniform_()
        elif tensor.is_complex():
            tensor.fill_(0.5)
        elif spec.high is not None:
            tensor.random_(max(spec.high, 1))
        else:
            tensor.zero_()

    return host_tensor(job, spec, write)
