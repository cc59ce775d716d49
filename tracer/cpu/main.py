"""The process that runs one job on the CPU and then exits."""

from __future__ import annotations

from typing import Any

from vramcast.jobs.job import Job, map_batch
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.program.imports import define_torchvision_operators
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions


def warm_up() -> None:
    """Import the modules that every job needs."""
    from vramcast.tracer.hooks import absent_dynamo

    absent_dynamo.stand_in()
    import vramcast.tracer.cpu.as_cuda
    import vramcast.tracer.cpu.mode
    import vramcast.tracer.rules.tracing  # noqa: F401

    define_torchvision_operators()


def run_job(job: Job, options: RunOptions) -> Result:
    """Run `job` in this process, on the CPU, and return the result; never raise for the job's own failures."""
    import torch

    from vramcast.tracer.cpu.as_cuda import CudaRoutes
    from vramcast.tracer.cpu.mode import CpuMode
    from vramcast.tracer.nullgpu.cudnn.libraries import completed
    from vramcast.tracer.program import model_program
    from vramcast.tracer.rules import tracing
    from vramcast.tracer.rules.convolution_workspaces import ConvolutionWorkspaces

    define_torchvision_operators()
    tracing.go_where(job)
    mode = CpuMode(job.device, ConvolutionWorkspaces(job.device, job.total_bytes, options.stack_of_plans(job.stack)))

    def run() -> Inputs | None:
        return model_program.run(job, torch.device("cpu"), _hooks(mode))

    return tracing.trace(job, "cpu", mode.card, (CudaRoutes(mode.card, completed(job.stack)), mode), run, cuda="none")


def _hooks(mode: Any) -> Any:
    """Return the hooks of the loop: weights and inputs get real values and are entered as the card's."""
    import torch

    from vramcast.tracer.hooks.torch_api import disable_current_modes
    from vramcast.tracer.program import model_program

    def build_model(job: Job) -> torch.nn.Module:
        with disable_current_modes():
            model = model_program.build_model(job)
            model_program.fill_weights(model)
        mode.hold_model(model)
        return model

    def host_batch(job: Job, batch: Any) -> Any:
        with disable_current_modes():
            return model_program.host_batch(job, batch, model_program.write_input)

    def to_device(batch: Any, device: torch.device) -> Any:
        with disable_current_modes():
            return map_batch(batch, lambda leaf: mode.hold_input(leaf.clone()) if isinstance(leaf, torch.Tensor) else leaf)

    return model_program.Hooks(build_model=build_model, host_batch=host_batch, to_device=to_device)
