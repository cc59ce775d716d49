"""A run of a job on its card: simulated if no allocator answered, and repeated on an unlimited card if its own is full."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from vramcast.core import progress
from vramcast.core.brief import brief
from vramcast.core.deadline import Deadline
from vramcast.core.errors import DoesNotFit, NullGpuError, UsageError
from vramcast.core.units import torch_size
from vramcast.estimates.communicators import context_of_process
from vramcast.hardware.context import LIBRARIES, Context, context_bytes
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.jobs.job import Job
from vramcast.simulator.card import Card
from vramcast.simulator.replay import recorded_settings
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.rules import AllocatorRules
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import simulate
from vramcast.simulator.trace_edits import first_row, with_context
from vramcast.simulator.what_if import min_feasible
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.nullgpu.cudnn.libraries import choose, installed_stack
from vramcast.tracer.observation import Observation, Tracer
from vramcast.tracer.protocol.run_options import RunOptions

_ASSUMED_CUDA = 13  # arbitrary: the major version of current CUDA builds, where the installed torch has none
_ALLOWED = re.compile(r"([\d.]+ \w+) allowed;")  # spec: torch 2.6 to 2.13, c10/cuda/CUDACachingAllocator.cpp
_COMMON = ("cublas", "cudnn")  # arbitrary: libraries of a job that was not observed yet


@brief
@dataclass(frozen=True, slots=True)
class OnCard:
    """The result of a job on its card; sizes are in bytes.

    Attributes:
        seen: The observation.
        stack: The stack for which the result holds.
        trace: The trace with segments, and with the process's memory outside the allocator.
        allocated, reserved: Peaks, on an unlimited card if the job's own was full.
        min_feasible: The smallest card on which the job runs; None if unknown, or before `with_smallest_cards`.
        without_searches: The smallest card without the trial workspaces of cudnn.benchmark, which may fail; None if there are
            none, or before `with_smallest_cards`.
        context: Memory of the process outside the segments.
        cuda_major: CUDA's major version on the card's machine.
        out_of_memory: torch's message if the job's card is full; None if it is not.
        seconds: Time for observation and simulation, in seconds.
        other_rank: Number and trace of another rank, for a job of several ranks; the trace includes the process's context.
    """

    seen: Observation
    stack: Stack
    trace: Trace
    allocated: int
    reserved: int
    min_feasible: int | None
    without_searches: int | None
    context: Context
    cuda_major: int
    out_of_memory: str | None
    seconds: dict[str, float]
    other_rank: tuple[int, Trace] | None = None

    def with_smallest_cards(self) -> OnCard:
        """Return the result with the smallest cards; of a job's runs, only that of the estimate needs this search."""
        progress.tell(progress.Stage.SIMULATION)
        started = time.perf_counter()
        found = replace(self, min_feasible=_smallest(self))
        without = _without_searches(found)
        spent_s = self.seconds["simulate"] + time.perf_counter() - started
        return replace(found, without_searches=without, seconds={**self.seconds, "simulate": spent_s})


def stack_of(job: Job, torch: str) -> Stack:
    """Return the stack for which an answer holds: the job's own, completed from this machine.

    Args:
        job: The job.
        torch: Version of the torch that ran it.
    """
    here = replace(installed_stack(), torch=torch)
    return here if job.stack is None else job.stack.over(here)


def cudnn_asked(stack: Stack | None) -> str:
    """Return the cuDNN that answers for a stack on this machine: its version or its folder; "" if there is none."""
    try:
        return choose(stack).library.name
    except NullGpuError:
        return ""


def observed_on_card(tracer: Tracer, job: Job, options: RunOptions, *, timeout_s: float) -> OnCard:
    """Observe a job on its card, or on an unlimited card if it does not fit.

    Args:
        tracer: The tracer.
        job: The job.
        options: How it is traced.
        timeout_s: Time limit for all its runs together, in seconds.
    Raises:
        DoesNotFit: The job requests more memory than any card has.
        CannotEstimate: The job cannot be observed.
    """
    started, deadline = time.perf_counter(), Deadline.after(timeout_s)
    cuda_major = (job.stack.cuda_major if job.stack is not None else None) or installed_stack().cuda_major or _ASSUMED_CUDA
    torch = stack_of(job, installed_stack().torch or "").torch

    def context(libraries: Collection[str]) -> Context:
        return context_bytes(job.device, cuda_major, libraries, torch=torch)

    # The job's libraries are unknown before the run; the common case determines the free memory of the card.
    options = replace(options, context_bytes=min(context(_COMMON).bytes, job.total_bytes))
    seen = tracer.observe(job, options, timeout_s=deadline.left_s())
    traced_s = time.perf_counter() - started
    found = _answered(job, seen, cuda_major, limited=options.limited)
    out_of_memory = found.out_of_memory
    if out_of_memory is not None:
        if seen.is_answered:
            options = replace(options, expandable=seen.was_expandable)
            seen = tracer.observe(job, replace(options, limited=False), timeout_s=deadline.left_s())
            if not _has_own_allocator(seen, found.stack):
                out_of_memory = _answered(job, seen, cuda_major, limited=True).out_of_memory
        found = _answered(job, seen, cuda_major, limited=out_of_memory is None)
        if found.out_of_memory is not None:
            raise DoesNotFit(_never_fits(found.out_of_memory))
        needed = context(seen.libraries).bytes
        if seen.is_answered and needed < options.context_bytes:  # it does not use all assumed libraries
            again = tracer.observe(job, replace(options, context_bytes=needed), timeout_s=deadline.left_s())
            if (nearer := _answered(job, again, cuda_major, limited=True)).out_of_memory is None:
                found, out_of_memory = nearer, None
        traced_s = time.perf_counter() - started
    seconds = {"trace": traced_s, "simulate": time.perf_counter() - started - traced_s}
    beside = found.seen.beside
    if beside is not None:
        beside = beside[0], with_context(beside[1], [(0, found.context.bytes)])
    return replace(found, out_of_memory=out_of_memory, seconds=seconds, other_rank=beside)


def _never_fits(message: str) -> str:
    """Return the reason why a job has no peak even on an unlimited card, from torch's message."""
    if (own := _ALLOWED.search(message)) is not None:
        return (
            f"The job does not fit into its own limit, {own[1]} of the card (torch.cuda.set_per_process_memory_fraction): "
            f"raise the limit, or remove it to learn what the job needs. {message}"
        )
    return f"The job requests more memory than any card has: {message}"


def _answered(job: Job, seen: Observation, cuda_major: int, *, limited: bool) -> OnCard:
    """Return an observation with its context in the trace and its requests answered, if necessary by the simulator.

    The caller fills in `seconds` and `other_rank`, and `with_smallest_cards` the smallest cards.
    """
    stack = stack_of(job, seen.torch)
    context = context_of_process(job.device, cuda_major, stack.torch, seen.libraries, seen.trace, seen.outside_bytes)
    trace = _with_context(seen, job.device, cuda_major, stack, context)
    trace = replace(trace, header={**trace.header, "torch": stack.torch})  # its allocator serves the requests
    if _has_own_allocator(seen, stack):
        peaks = trace.header["peaks"]
        allocated, reserved, full = peaks["allocated"], peaks["reserved"], seen.out_of_memory or None
    else:
        played = simulate(trace, _settings(seen, stack, trace), Card(job.total_bytes) if limited else Card())
        trace, allocated, reserved, full = played.replayed(), played.allocated, played.reserved, seen.out_of_memory or None
        if (end := played.out_of_memory) is not None:
            full = f"CUDA out of memory. Tried to allocate {torch_size(end.size_bytes)} in {end.place}."
    return OnCard(seen, stack, trace, allocated, reserved, None, None, context, cuda_major, full, {})


def _has_own_allocator(seen: Observation, stack: Stack) -> bool:
    """Return whether the allocator of the stack's torch, or one like it, answered the requests."""
    return seen.is_answered and AllocatorRules.of(stack.torch).serves_like(AllocatorRules.of(seen.torch))


def _settings(seen: Observation, stack: Stack, trace: Trace) -> Settings:
    """Return the allocator's settings: those recorded, or without an allocator the job's, by the rules of its torch."""
    if seen.is_answered:
        return recorded_settings(trace)
    return Settings.parse(seen.alloc_conf.value, AllocatorRules.of(stack.torch))


def settings_of(found: OnCard) -> Settings:
    """Return the allocator's settings under which a job ran.

    Raises:
        UsageError: The settings are unknown, for example those of a newer torch.
    """
    return _settings(found.seen, found.stack, found.trace)


def _smallest(found: OnCard) -> int | None:
    """Return the smallest card on which the requests succeed; None if the settings are unknown."""
    try:
        return min_feasible(found.trace, settings_of(found))
    except UsageError:
        return None


def _without_searches(found: OnCard) -> int | None:
    """Return the smallest card without trial workspaces; the plans that the searches chose need theirs."""
    trials = np.flatnonzero(found.trace.is_search())
    if not len(trials) or found.min_feasible is None:
        return None
    rest = Requests.of(found.trace.without_blocks(trials))
    kind = np.where(rest.kind == RequestKind.TRY, RequestKind.MALLOC, rest.kind).astype(np.uint8)
    return min_feasible(replace(rest, kind=kind), settings_of(found))


def _first_use(trace: Trace, library: str) -> int:
    """Return the row of the first operator that loads a library, which takes its memory then; 0 if there is none."""
    return first_row(trace, lambda operator: operator.library.loaded == library) or 0


def _with_context(seen: Observation, card: Device, cuda_major: int, stack: Stack, context: Context) -> Trace:
    """Return the trace with the process's memory outside the allocator; cuBLAS and cuDNN count from their first operator.

    The time at which NCCL or other code took such memory is unknown, so that memory counts from the start.
    """
    trace, libraries = seen.trace, seen.libraries
    loaded: set[str] = set()
    taken = []
    at_bytes = 0
    for library in ("", *LIBRARIES):
        if library == "nccl" or (library and library not in libraries):
            continue
        loaded |= {library} - {""}
        total_bytes = context_bytes(card, cuda_major, loaded, torch=stack.torch).bytes
        row = _first_use(trace, library) if library else 0
        taken.append((row, total_bytes - at_bytes))
        at_bytes = total_bytes
    if context.bytes > at_bytes:
        taken.append((0, context.bytes - at_bytes))
    return with_context(trace, sorted(taken))
