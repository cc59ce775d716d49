"""A second run of a job with convolutions under another cuDNN, if the one of its stack cannot be queried.

It is unknown which of the two chooses as the job's own cuDNN does. The estimate is the run with the smaller reserved peak, and
the bound starts from the larger one (docs/null-gpu.md, "Stacks").
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from vramcast.core.brief import brief
from vramcast.core.deadline import Deadline
from vramcast.core.errors import CannotEstimate, NullGpuError
from vramcast.estimates.phases import course_of
from vramcast.estimates.runs.on_card import OnCard, cudnn_asked, observed_on_card
from vramcast.jobs.job import Job
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.nullgpu.cudnn.libraries import CudnnLibrary, second_opinion
from vramcast.tracer.observation import Tracer
from vramcast.tracer.processes.thread_pool import in_parallel, n_free_lanes
from vramcast.tracer.protocol.run_options import RunOptions

_MOST_RUNS: Final = 2.0  # arbitrary: multiple of the first run's time that the second may take
_LEAST_S: Final = 10.0  # arbitrary: time of a second run that starts an oracle
_IMAGE_MODELS: Final = ("torchvision:", "timm:")


@brief
@dataclass(frozen=True, slots=True)
class OtherPlans:
    """The larger peaks of a job, with the plans of another cuDNN than the estimate's.

    Attributes:
        cudnn: The version of that cuDNN.
        allocated, reserved: Its peaks, in bytes; the reserved one is at least the estimate's.
        trace: Its trace.
    """

    cudnn: str
    allocated: int
    reserved: int
    trace: Trace = field(repr=False)


@dataclass(frozen=True, slots=True)
class CudnnComparison:
    """The result of a job after a second opinion on its plans.

    Attributes:
        on_card: The run used for the estimate.
        options: How it was traced.
        larger: The other run; None: there is none.
        failure: Why a second run that was needed gave no peak.
    """

    on_card: OnCard
    options: RunOptions
    larger: OtherPlans | None = None
    failure: str = ""

    @property
    def warning(self) -> str:
        """The remark about a failed second run; "" if there is none."""
        return f"no second cuDNN chose plans, which widens the bound: {self.failure}" if self.failure else ""


def observed(tracer: Tracer, job: Job, options: RunOptions, deadline: Deadline) -> CudnnComparison:
    """Return the run of a job on its card; under two cuDNNs, the one with the smaller reserved peak, and the other one.

    A model with convolutions runs under both at once if there are processors for it. What a command does is known after its
    first run.

    Args:
        tracer: The tracer.
        job: The job.
        options: How it is traced.
        deadline: Deadline of the whole answer.
    Raises:
        DoesNotFit, CannotEstimate: See `observed_on_card`.
    """
    library = _second_cudnn(job, options)
    if library is None:
        return CudnnComparison(observed_on_card(tracer, job, options, timeout_s=deadline.left_s()), options)
    way = replace(options, cudnn=library.name)
    other: OnCard | CannotEstimate | None
    if _is_of_convolutions(job) and n_free_lanes() > 1:
        ways = [options, way]
        first, other = in_parallel(lambda one: _tried(tracer, job, one, deadline.left_s()), ways)
        if isinstance(first, CannotEstimate):
            raise first
    else:
        first = observed_on_card(tracer, job, options, timeout_s=deadline.left_s())
        other = _after(first, tracer, job, way, deadline)
    if other is None or not first.seen.trace.has_convolutions:
        return CudnnComparison(first, options)
    if isinstance(other, CannotEstimate):
        return CudnnComparison(first, options, failure=f"{library}: {other}")
    return _compared(job, first, options, other, way)


def _second_cudnn(job: Job, options: RunOptions) -> CudnnLibrary | None:
    try:
        return None if options.cudnn else second_opinion(job.stack)
    except NullGpuError:
        return None


def _is_of_convolutions(job: Job) -> bool:
    """Return whether a job surely has convolutions before it runs."""
    return (job.target or "").startswith(_IMAGE_MODELS) or (job.model is not None and b"torch.nn.modules.conv" in job.model)


def _after(first: OnCard, tracer: Tracer, job: Job, way: RunOptions, deadline: Deadline) -> OnCard | CannotEstimate | None:
    """Return the second run after the first; None if that had no convolutions, or was interrupted."""
    if not first.seen.trace.has_convolutions or course_of(first.seen.trace).is_interrupted:
        return None
    if first.out_of_memory is not None:  # then its peaks are those of an unlimited card
        way = replace(way, limited=False, expandable=first.seen.was_expandable)
    return _tried(tracer, job, way, min(deadline.left_s(), max(_LEAST_S, _MOST_RUNS * first.seconds["trace"])))


def _tried(tracer: Tracer, job: Job, options: RunOptions, timeout_s: float) -> OnCard | CannotEstimate:
    try:
        return observed_on_card(tracer, job, options, timeout_s=timeout_s)
    except CannotEstimate as error:
        return error


def _compared(job: Job, first: OnCard, options: RunOptions, other: OnCard, way: RunOptions) -> CudnnComparison:
    """Return the smaller run, and the plans of the larger one; further runs ask the cuDNN of the smaller one."""
    if first.out_of_memory is not None:
        smallest = other.with_smallest_cards().min_feasible
        if smallest is None or smallest > job.total_bytes:
            other = replace(other, out_of_memory=first.out_of_memory)
    seconds = {name: spent_s + other.seconds[name] for name, spent_s in first.seconds.items()}
    asked = cudnn_asked(job.stack)
    if other.reserved < first.reserved:
        return CudnnComparison(replace(other, stack=first.stack, seconds=seconds), way, _plans(first, asked))
    return CudnnComparison(replace(first, seconds=seconds), replace(options, cudnn=asked), _plans(other, way.cudnn))


def _plans(run: OnCard, cudnn: str) -> OtherPlans:
    return OtherPlans(cudnn, run.allocated, run.reserved, run.trace)
