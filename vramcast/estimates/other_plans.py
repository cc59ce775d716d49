"""A second run of a job with convolutions under another cuDNN, if the one of its stack cannot be queried.

Which of the two chose as the job's own cuDNN does is unknown. The estimate is the run with the smaller reserved peak, which is
nearer to measured peaks in the median, and the bound starts from the larger one (docs/learner.md, "Two cuDNNs").
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from vramcast.core.brief import brief
from vramcast.core.deadline import Deadline
from vramcast.core.errors import CannotEstimate, NullGpuError
from vramcast.estimates.phases import course_of
from vramcast.estimates.run_on_card import OnCard, cudnn_asked, observed_on_card
from vramcast.jobs.job import Job
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.nullgpu.cudnn.libraries import second_opinion
from vramcast.tracer.observation import Tracer
from vramcast.tracer.protocol.run_options import RunOptions

_MOST_RUNS: Final = 2.0  # arbitrary: multiple of the first run's time that the second may take
_LEAST_S: Final = 10.0  # arbitrary: time of a second run that starts an oracle


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
class Compared:
    """The result of a job after a second opinion on its plans.

    Attributes:
        on_card: The run used for the estimate.
        options: How it was traced.
        larger: The other run; None: there is none.
    """

    on_card: OnCard
    options: RunOptions
    larger: OtherPlans | None = None


def compared(tracer: Tracer, job: Job, options: RunOptions, first: OnCard, deadline: Deadline) -> Compared:
    """Return the run of a job with the smaller reserved peak under two cuDNNs, and the other run.

    Args:
        tracer: The tracer of the first run.
        job: The job.
        options: How it was traced.
        first: Result of the first run.
        deadline: Deadline of the whole answer.
    """
    alone = Compared(first, options)
    if options.cudnn or not first.seen.trace.has_convolutions or course_of(first.seen.trace).is_interrupted:
        return alone
    try:
        library = second_opinion(job.stack)
    except NullGpuError:
        return alone
    if library is None:
        return alone
    is_full = first.out_of_memory is not None  # then its peaks are those of an unlimited card
    way = replace(options, cudnn=library.name)
    there = replace(way, limited=False, expandable=first.seen.was_expandable) if is_full else way
    limit_s = min(deadline.left_s(), max(_LEAST_S, _MOST_RUNS * first.seconds["trace"]))
    try:
        other = replace(observed_on_card(tracer, job, there, timeout_s=limit_s), stack=first.stack)
    except CannotEstimate:
        return alone
    if is_full and (other.min_feasible is None or other.min_feasible > job.total_bytes):
        other = replace(other, out_of_memory=first.out_of_memory)
    seconds = {name: spent_s + other.seconds[name] for name, spent_s in first.seconds.items()}
    if other.reserved < first.reserved:
        larger = _plans(first, cudnn_asked(job.stack))
        return Compared(replace(other, seconds=seconds), way, larger)
    return Compared(replace(first, seconds=seconds), options, _plans(other, library.name))


def _plans(run: OnCard, cudnn: str) -> OtherPlans:
    return OtherPlans(cudnn, run.allocated, run.reserved, run.trace)
