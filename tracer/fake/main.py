"""The process that runs one job on fake tensors and then exits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from vramcast.jobs.job import Job
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.program.imports import define_torchvision_operators
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions


def warm_up() -> None:
    """Import the modules that every job needs."""
    from vramcast.tracer.hooks import absent_dynamo

    absent_dynamo.stand_in()
    import vramcast.tracer.fake.cuda
    import vramcast.tracer.fake.mode
    import vramcast.tracer.rules.autocast
    import vramcast.tracer.rules.composites
    import vramcast.tracer.rules.tracing
    import vramcast.tracer.values.follower  # noqa: F401

    _prepare_torchvision()


def run_job(job: Job, options: RunOptions, program: Callable[[], object] | None = None) -> Result:
    """Run `job` in this process and return the result; never raise for the job's own failures.

    Args:
        job: The job to run.
        program: Run instead of the job's loop, on the job's card.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    from vramcast.tracer.fake import cuda, recurrent
    from vramcast.tracer.fake.mode import CardMode, refuse_compiled
    from vramcast.tracer.fake.tensor import CudaTensor
    from vramcast.tracer.hooks import host_checks
    from vramcast.tracer.nullgpu.cudnn.libraries import completed
    from vramcast.tracer.program import model_program
    from vramcast.tracer.rules import composites, tracing
    from vramcast.tracer.rules.autocast import Autocast
    from vramcast.tracer.rules.convolution_workspaces import ConvolutionWorkspaces
    from vramcast.tracer.values.follower import Values, patched

    tracing.go_where(job)
    host_checks.take_as_passed()
    _prepare_torchvision()
    mode = CardMode(job.device, ConvolutionWorkspaces(job.device, job.total_bytes, options.stack_of_plans(job.stack)))
    cuda.pretend(job.device, job.total_bytes, mode.card.history)
    library, stack = torch.library.Library("aten", "IMPL"), completed(job.stack)
    autocast = Autocast(stack)
    composites.register(library, mode.card, "AutogradCUDA", stack)
    cuda.name_kernels(library)
    recurrent.register(library)
    register_module_forward_pre_hook(refuse_compiled)
    devices = ("cuda", "meta")
    values = Values(mode.known, on_card=lambda t: isinstance(t, CudaTensor), devices=devices, answers=options.answers)
    mode.call = lambda: values.call

    def build(job: Job) -> Any:
        mode.building = True
        try:
            return model_program.build_model(job)
        finally:
            mode.building = False

    def run() -> Inputs | None:
        if program is not None:
            program()
            return None
        return model_program.run(job, torch.device("cuda"), model_program.Hooks(build_model=build))

    result = tracing.trace(job, "fake", mode.card, (mode, patched(values), values), run, cuda=str(torch.version.cuda))
    result.ledger += values.ledger()
    if mode.host_reads:
        result.ledger.append(Entry(CallHandling.READ, "values read from the card", mode.host_reads))
    del library, autocast
    return result


def _prepare_torchvision() -> None:
    if define_torchvision_operators() and not _KEPT:
        from vramcast.tracer.fake import vision

        with contextlib.suppress(Exception):  # torchvision may fail to import: the job raises then, if it needs it
            _KEPT.append(vision.register())


_KEPT: list[Any] = []
