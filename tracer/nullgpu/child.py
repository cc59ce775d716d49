"""Runs one job on the null GPU: the body of a forked worker process. One job, one process, then it is gone."""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramcast.devices import Device
from vramcast.errors import UsageError
from vramcast.job import Job
from vramcast.throughput import Roofline
from vramcast.tracer import alloc_conf, torch_api
from vramcast.tracer.course import Course, Limits, StopJob
from vramcast.tracer.job_result import Result
from vramcast.tracer.nullgpu import compilers, program, raw, subprocesses
from vramcast.tracer.nullgpu.load import NullGpu
from vramcast.tracer.nullgpu.outcome import complete
from vramcast.tracer.nullgpu.raw import RawRequests, RawResult
from vramcast.tracer.run_options import RunOptions
from vramcast.tracer.stopping import stoppable

if TYPE_CHECKING:
    from vramcast.tracer.record import Recorder
    from vramcast.tracer.values.follow import Values


def kernel_arch(built_for: str, major: int, minor: int) -> int:
    """Return the architecture (10 x major + minor) whose kernels of a torch build run on a card.

    Machine code runs on cards of the same major version and the same or a higher minor one; PTX ("compute_90") on every
    newer card.

    Args:
        built_for: torch's own list, "sm_75 sm_80 sm_86 sm_90 compute_90".
        major: Of the card's compute capability.
        minor: Of the card's compute capability.
    Raises:
        UsageError: the build has no kernels for the card; real PyTorch would not run there either.
    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    card = 10 * major + minor
    code = [int(n) for n in re.findall(r"\bsm_(\d+)", built_for)]
    ptx = [int(n) for n in re.findall(r"\bcompute_(\d+)", built_for)]
    fitting = [n for n in code if n // 10 == major and n <= card] or [n for n in ptx if n <= card]
    if not fitting:
        raise UsageError(
            f"This torch build has no kernels for compute capability {major}.{minor} (it has: {built_for}): "
            "choose another --device, or a torch build which supports that card."
        )
    return max(fitting)


_KEPT: list[Any] = []  # what this process, which ends soon, need not take apart: a profile's events cost 20 ms
_ADDRESSES_BYTES = 1 << 40  # arbitrary: 1 TiB, above any card


def device_config(job: Job, options: RunOptions, built_for: str) -> str:
    """Return the null GPU's configuration for `job`: the device's numbers, the card's size and what of it is usable."""
    total_bytes = job.total_bytes
    if not options.limited and (options.expandable or alloc_conf.is_expandable(job.alloc_conf or "")):
        # An expandable segment has addresses for 9/8 of the card, and torch 2.11 crashes beyond them.
        total_bytes = max(total_bytes, _ADDRESSES_BYTES)
    return _config(job.device.with_memory(total_bytes), options.context_bytes, options.limited, built_for)


def _config(device: Device, context_bytes: int, limited: bool, built_for: str) -> str:
    arch = kernel_arch(built_for, *device.compute_capability)
    capacity = device.total_bytes if limited else 1 << 44  # arbitrary: 16 TiB, "no end"
    return f"{device.to_config()};context_bytes={context_bytes};capacity_bytes={capacity};kernel_arch={arch}"


def run_raw(requests: RawRequests, gpu: NullGpu) -> list[RawResult]:
    """Play bare requests through this process's allocator, under their own settings."""
    alloc_conf.forget(os.environ)

    gpu.configure(_config(requests.device, 0, requests.limited, torch_api.cuda_arch_flags() or ""))
    return raw.run(requests)


@dataclass(frozen=True, slots=True)
class Program:
    """Any code of ours for which the null GPU shall be torch's card: `run_job(argument)` of a module.

    Attributes:
        module: Its name.
        argument: What `run_job` is called with; pickled.
        device: The card, with its own size.
    """

    module: str
    argument: Any
    device: Device


def run_program(program: Program, gpu: NullGpu) -> Any:
    """Return what the program gives; it says its allocator's settings itself."""
    alloc_conf.forget(os.environ)

    gpu.configure(_config(program.device, 0, True, torch_api.cuda_arch_flags() or ""))
    return importlib.import_module(program.module).run_job(program.argument)


def run_job(job: Job, options: RunOptions, gpu: NullGpu) -> Result:
    """Run `job` in this process and return what came out; never raises for the job's own failures."""
    if job.search_path:
        sys.path[:] = [*job.search_path]
    os.chdir(job.working_folder)

    import torch  # the stand-ins are loaded; CUDA is not initialised yet

    from vramcast.tracer import host_checks
    from vramcast.tracer.circumstances import Observer

    host_checks.take_as_passed()
    compilers.prepare()
    result = Result("ok", torch=str(torch.__version__), cuda=str(torch.version.cuda))
    settings = alloc_conf.Watch(job.alloc_conf, applies=True)
    recorder = recorder_of(job, options)
    observer = Observer()
    if job.command is not None:
        subprocesses.follow_forks(subprocesses.Watched(job, gpu, recorder, observer, settings))
    values: Values | None = None
    is_whole, ended = False, ""
    try:
        gpu.configure(device_config(job, options, _built_for(job)))
        if job.command is not None:
            gpu.show_tools()
        settings.start()
        recorder.start()
        with observer, _values(job, options, gpu) as values:
            compilers.hide_hooks()
            _run(job, recorder.course, options.limit_s)
        is_whole = True
    except torch.OutOfMemoryError as error:
        result.status, result.message = "oom", str(error)
    except StopJob:
        ended = recorder.course.stopped_by
    except BaseException as error:  # the user's code may raise anything
        result.fail(error)
        if job.command is not None and result.error == "JobError" and recorder.has_requests:
            result.status, ended = "ok", f"it {result.message}"
    gc.disable()  # from here on only our own book-keeping runs; the job had the collector as any job has it
    complete(
        result, job, gpu, recorder, observer, settings, followed=values.ledger() if values is not None else (),
        is_whole=is_whole, ended=ended,
    )  # fmt: skip
    _KEPT.append(recorder)
    return result


def _limits(job: Job) -> Limits | None:
    if job.command is None:
        return None
    return Limits(job.training.steps, job.command.until, job.command.budget_s)


def _say(text: str) -> None:
    """Tell the user how the job goes on; the job may have put anything in place of its stderr."""
    with suppress(OSError):
        os.write(2, f"vramcast: {text}\n".encode())


def _built_for(job: Job) -> str:
    """Return for which cards torch was built; after the question torch refuses CUDA to forks, and a command may make some."""

    def asked() -> str:
        return torch_api.cuda_arch_flags() or ""

    return asked() if job.command is None else subprocesses.asked_in_a_fork(asked)


def recorder_of(job: Job, options: RunOptions) -> Recorder:
    """Return who records a process of `job`, and stops one of a command when enough was seen."""
    from vramcast.tracer.record import Recorder

    return Recorder(
        limits=_limits(job), say=_say if job.command is not None else None, shapes=options.shapes,
        roofline=Roofline.of(job.device) if options.accesses else None,
    )  # fmt: skip


@contextmanager
def _values(job: Job, options: RunOptions, gpu: NullGpu) -> Iterator[Values | None]:
    """Follow values if that is asked for, but for compiled code, which must not see who watches."""
    if not options.follow_values and job.command is None:
        yield None
        return
    import torch

    from vramcast.tracer.values import collectives
    from vramcast.tracer.values.follow import Values

    values = Values(gpu, answers=options.answers)
    torch.compile = values.unseen_by(torch.compile)
    with values, collectives.followed(values.same):
        yield values


def _run(job: Job, course: Course, limit_s: float | None) -> None:
    if job.command is not None:
        from vramcast.tracer.nullgpu import checkpoints

        with checkpoints.kept_apart(), stoppable(course, limit_s):
            program.run(job.command)
        return
    import torch

    from vramcast.tracer import step

    step.run(job, torch.device("cuda"))
