"""Runs one job on the CPU, in a process of its own: one job, then it is gone."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from vramcast.job import Job, map_batch
from vramcast.tracer.alloc_conf import Watch
from vramcast.tracer.imports import define_torchvision_operators
from vramcast.tracer.ledger import Code, Entered, Entry
from vramcast.tracer.result import Result, peak_resident_bytes
from vramcast.tracer.run_options import RunOptions
from vramcast.tracer.trace import CIRCUMSTANCES


def warm_up() -> None:
    """Import what every job needs."""
    import vramcast.tracer.cpu.as_cuda
    import vramcast.tracer.cpu.recorder
    import vramcast.tracer.step  # noqa: F401

    define_torchvision_operators()


def run_job(job: Job, options: RunOptions) -> Result:
    """Run `job` in this process, on the CPU, and return what came out; never raises for the job's own failures."""
    import torch

    from vramcast.tracer.circumstances import Observer
    from vramcast.tracer.convolution_workspaces import ConvolutionWorkspaces
    from vramcast.tracer.cpu.as_cuda import CudaRoutes
    from vramcast.tracer.cpu.recorder import Recorder

    define_torchvision_operators()
    sys.path[:] = [*job.search_path] or sys.path  # from here on the caller's; torch is this interpreter's own
    os.chdir(job.working_folder)
    result = Result("ok", torch=str(torch.__version__), cuda="none")
    workspaces = ConvolutionWorkspaces(job.device, job.total_bytes, job.stack)
    capability, training = job.device.compute_capability, job.training.mode == "train"
    recorder = Recorder(capability=capability, training=training, convolution_workspaces=workspaces)
    settings = Watch(job.alloc_conf, applies=False)
    settings.start()
    observer = Observer()
    try:
        with observer, workspaces, CudaRoutes(), recorder:
            _run(job, recorder)
    except BaseException as error:  # the user's code may raise anything
        result.fail(error)
    result.steps = recorder.steps
    result.note_settings(settings)
    if result.status == "ok":
        header = {"tracer": "cpu", "torch": str(torch.__version__), "device": job.device.key, CIRCUMSTANCES: observer.seen()}
        result.trace = recorder.trace(header)
        result.ledger = _ledger(recorder.calls) + workspaces.ledger()
    result.max_resident_bytes = peak_resident_bytes()
    return result


def _ledger(calls: dict[str, int]) -> list[Entry]:
    """Return what a GPU's libraries would have been asked, and which answers nobody gave."""
    entries = []
    if "product" in calls:
        entries.append(Entry(Entered.NOOP, "cublas products", calls["product"]))
    if "recurrent layer" in calls:
        entries.append(Entry(Entered.ASSUMED, "cudnn recurrent layers: as the CPU's", calls["recurrent layer"]))
    unknown = [what for what in calls if what == Code.CHANNELS_LAST_NORM or what.startswith("temporaries of ")]
    entries += [Entry.counted(what, calls[what]) for what in unknown]
    return entries


def _run(job: Job, recorder: Any) -> None:
    """Run the loop of all tracers with this one's model and batches put in."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    from vramcast.tracer import drawn, step

    build_model, make_batch = step.build_model, step.host_batch

    def build_with_storage(job: Job) -> torch.nn.Module:
        with _disable_current_modes():
            model = build_model(job)
            drawn.fill_weights(model)
        recorder.hold(model)
        return model

    def host_batch(job: Job, batch: Any, write: step.WriteInput = drawn.write_input) -> Any:
        with _disable_current_modes():
            return make_batch(job, batch, write)

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
    step.run(job, torch.device("cpu"), write=drawn.write_input)
