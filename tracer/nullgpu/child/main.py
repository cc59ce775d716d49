"""Runs one job on the null GPU: the body of a forked worker process, which serves one job and then ends."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

from vramcast.core.errors import UsageError
from vramcast.hardware.device import Device
from vramcast.jobs.job import Job
from vramcast.jobs.ranks import Rank
from vramcast.tracer.hooks import shared_memory, torch_api
from vramcast.tracer.libraries import inductor
from vramcast.tracer.nullgpu.child import program, subprocesses, visible_cards
from vramcast.tracer.nullgpu.child.observer import ProcessObserver
from vramcast.tracer.nullgpu.library.loader import NullGpu
from vramcast.tracer.program.imports import look_in
from vramcast.tracer.program.training_loop import StopJob
from vramcast.tracer.protocol import alloc_conf
from vramcast.tracer.protocol.job_result import Result, place_of
from vramcast.tracer.protocol.run_options import RunOptions


def kernel_arch(built_for: str, major: int, minor: int) -> int:
    """Return the architecture (10 x major + minor) of the kernels in a torch build that run on a card.

    Machine code runs on cards of the same major version and the same or a higher minor one; PTX ("compute_90") runs on every
    newer card.

    Args:
        built_for: torch's own list, "sm_75 sm_80 sm_86 sm_90 compute_90".
        major: Major number of the card's compute capability.
        minor: Minor number of the card's compute capability.
    Raises:
        UsageError: The build has no kernels for the card; real PyTorch would not run there either.

    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    card = 10 * major + minor
    code = [int(n) for n in re.findall(r"\bsm_(\d+)", built_for)]
    ptx = [int(n) for n in re.findall(r"\bcompute_(\d+)", built_for)]
    fitting = [n for n in code if n // 10 == major and n <= card] or [n for n in ptx if n <= card]
    if not fitting:
        raise UsageError(
            f"This torch build has no kernels for compute capability {major}.{minor} (it has: {built_for}): "
            "choose another --device, or a torch build that supports this card."
        )
    return max(fitting)


_ADDRESSES_BYTES = 1 << 40  # arbitrary: 1 TiB, above any card


def device_config(job: Job, options: RunOptions, built_for: str) -> str:
    """Return the null GPU's configuration for `job`: the device's numbers, the card's size and its usable part."""
    total_bytes = job.total_bytes
    if not options.limited and (options.expandable or alloc_conf.is_expandable(job.alloc_conf or "")):
        # An expandable segment has addresses for 9/8 of the card, and torch 2.11 crashes beyond them.
        total_bytes = max(total_bytes, _ADDRESSES_BYTES)
    config = _config(job.device.with_memory(total_bytes), options.context_bytes, options.limited, built_for)
    return f"{config};device_count={job.world.local_size};is_slow={int(options.slow)}"


def _config(device: Device, context_bytes: int, limited: bool, built_for: str) -> str:
    arch = kernel_arch(built_for, *device.compute_capability)
    capacity = device.total_bytes if limited else 1 << 44  # arbitrary: 16 TiB, "unlimited"
    return f"{device.to_config()};context_bytes={context_bytes};capacity_bytes={capacity};kernel_arch={arch}"


@dataclass(frozen=True, slots=True)
class Program:
    """Our own code that runs with the null GPU as torch's card: `run_job(argument)` of a module.

    Attributes:
        module: Its name.
        argument: Argument of `run_job`; pickled.
        device: The card, with its own size.
        limited: Whether the card is limited to its size.
        search_path: Path of the module, if it is outside vramcast.
    """

    module: str
    argument: Any
    device: Device
    limited: bool = True
    search_path: tuple[str, ...] = ()


def run_program(program: Program, gpu: NullGpu) -> Any:
    """Return the result of the program, which chooses its own allocator settings."""
    alloc_conf.forget(os.environ)
    visible_cards.show(1)
    sys.path[:0] = program.search_path
    gpu.configure(_config(program.device, 0, program.limited, torch_api.cuda_arch_flags() or ""))
    return importlib.import_module(program.module).run_job(program.argument)


def run_job(job: Job, options: RunOptions, gpu: NullGpu) -> Result:
    """Run `job` in this process and return its result; never raises for the job's own failures."""
    look_in(job.search_path)
    os.chdir(job.working_folder)

    import torch  # the stand-ins are loaded; CUDA is not initialised yet

    from vramcast.tracer.hooks import host_checks

    visible_cards.show(job.world.local_size)
    host_checks.take_as_passed()
    inductor.prepare()
    result = Result("ok", torch=str(torch.__version__), cuda=str(torch.version.cuda))
    settings = alloc_conf.Watch(job.alloc_conf, applies=True)
    watched = ProcessObserver(job, options, gpu, settings)
    if job.command is not None:
        watched.follow_forks()
    is_whole, ended = False, ""
    end_others = functools.partial(subprocesses.end_others, options.limit_s)
    try:
        gpu.configure(device_config(job, options, _built_for(job)))
        if job.command is not None:
            gpu.show_tools()
        settings.start()
        watched.prepare(is_own=True)
        watched.begin(before_stop=end_others)
        try:
            _run(job, watched.rank, result)
        finally:
            gc.disable()  # from here on only our own book-keeping runs; the job ran with the collector as usual
            watched.end()
        is_whole = True
    except torch.OutOfMemoryError as error:
        result.status, result.message = "oom", str(error)
    except StopJob:
        ended = watched.recorder.course.stopped_by
    except BaseException as error:  # the user's code may raise anything
        result.fail(shared_memory.explained(error, gpu.ledger(), place_of(error)))
        if job.command is not None and result.error == "JobError" and watched.recorder.has_requests:
            stopped_by = watched.recorder.course.stopped_by
            result.status, ended = "ok", f"{stopped_by}; it {result.message}" if stopped_by else f"it {result.message}"
    if job.command is not None:
        end_others()
    watched.complete(result, is_whole=is_whole, ended=ended)
    return result


def _run(job: Job, rank: Rank, result: Result) -> None:
    if job.command is not None:
        program.run(job.command, rank)
        return
    import torch

    from vramcast.tracer.program import model_program

    if job.parallel is None:
        result.inputs = model_program.run(job, torch.device("cuda"))
        return
    from vramcast.tracer.ranks import spread

    def say(text: str) -> None:
        result.notes = (*result.notes, text)

    result.inputs = spread.run(job, job.parallel, rank, torch.device("cuda"), say)


def _built_for(job: Job) -> str:
    """Return the architectures of the torch build; the query makes torch refuse CUDA to forks, and a command may fork."""

    def query() -> str:
        return torch_api.cuda_arch_flags() or ""

    return query() if job.command is None else subprocesses.answer_of_fork(query)
