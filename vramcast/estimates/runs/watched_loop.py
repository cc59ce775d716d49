"""A second, longer run of a job with a possibly growing loop, with enough steps to decide.

The number of steps depends on the job and not on the machine: on the allocator events per step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from vramcast.core.deadline import Deadline
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.estimates.growth import Growth, kept_by, kept_so_far, place_of, to_watch
from vramcast.estimates.phases import course_of
from vramcast.estimates.runs.on_card import OnCard, observed_on_card, settings_of
from vramcast.jobs.job import Job
from vramcast.jobs.text import BUDGET_S
from vramcast.simulator.repeated_steps import RepeatedSteps
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.loops import SeenLoop, loops_of
from vramcast.tracer.format.trace import COURSE
from vramcast.tracer.observation import Tracer
from vramcast.tracer.protocol.run_options import LEAST_WATCHED, LoopWatch, RunOptions

_FIRST_RUNS: Final = 2.0  # arbitrary: multiple of the first run's time for a second run, added to a command's budget


@dataclass(frozen=True, slots=True)
class CheckedLoop:
    """The result of a job after a check of its loops.

    Attributes:
        on_card: The run used for the estimate.
        growth: Growth of one of its loops; None if all settle.
    """

    on_card: OnCard
    growth: Growth | None


def watched(tracer: Tracer, job: Job, options: RunOptions, first: OnCard, deadline: Deadline) -> CheckedLoop:
    """Return the run of a job to use, and the growth of one of its loops.

    Args:
        tracer: The tracer of the first run.
        job: The job.
        options: How it was traced.
        first: Result of the first run.
        deadline: Deadline of the whole answer.
    """
    found, seconds = CheckedLoop(first, None), dict(first.seconds)
    for watch in to_watch(first.seen.trace):
        second = _watched_run(tracer, job, options, first, watch, deadline)
        if second is not None:
            seconds = {name: spent_s + second.seconds[name] for name, spent_s in seconds.items()}
        seen = second or first  # the first run shows the size of growth, but not whether it stops
        loop = next((one for one in loops_of(seen.seen.trace) if one.number == watch.number), None)
        to_end = course_of(first.seen.trace).seen.to_end
        growth = _growth(job, seen, loop, watch, to_end=to_end) if loop is not None else None
        if growth is None or (found.growth is not None and not growth.is_judged):
            continue
        # If only the time limit ended the loop, its number of steps depends on the machine: use the second run.
        found = CheckedLoop(seen if _was_ended_by_time(job, first) else first, growth)
        if growth.is_judged:
            break
    return replace(found, on_card=replace(found.on_card, seconds=seconds))


def _watched_run(
    tracer: Tracer, job: Job, options: RunOptions, first: OnCard, watch: LoopWatch, deadline: Deadline
) -> OnCard | None:
    """Run a job while one of its loops is watched; None if it cannot be observed that long."""
    if course_of(first.seen.trace).is_interrupted:
        return None
    longer = job if job.command is not None else job.with_training(steps=watch.steps)
    way = replace(options, watch=watch, limited=False, expandable=first.seen.was_expandable)
    try:
        limit_s = min(deadline.left_s(), BUDGET_S + _FIRST_RUNS * first.seconds["trace"])
        return observed_on_card(tracer, longer, way, timeout_s=limit_s)
    except CannotEstimate:
        return None


def _was_ended_by_time(job: Job, first: OnCard) -> bool:
    """Return whether the training continued after the wanted steps without an evaluation."""
    if job.command is None or first.seen.steps <= job.training.steps or course_of(first.seen.trace).seen.to_end:
        return False
    phases = [str(name) for _, name in first.seen.trace.header[COURSE]["phases"]]
    return "evaluation" not in phases[phases.index("training") :] if "training" in phases else True


def _growth(job: Job, on_card: OnCard, loop: SeenLoop, watch: LoopWatch, *, to_end: bool) -> Growth | None:
    trace, ends = on_card.seen.trace, loop.ends
    is_judged = len(ends) >= watch.steps or not loop.is_open
    kept = (kept_by if len(ends) >= LEAST_WATCHED else kept_so_far)(trace, ends)
    if kept is None:
        return None
    try:
        settings = settings_of(on_card)
    except UsageError:  # settings of a newer torch
        settings = Settings()
    later = RepeatedSteps.of(trace, ends, settings, bytes_per_step=kept.bytes_per_step)
    # A training without an observed end frees nothing there.
    ends_it = to_end or not loop.is_open or loop.phase != "training"
    n = loop.length if loop.is_open or loop.length is not None else len(ends)
    return Growth(
        kept.bytes_per_step, loop.phase, place_of(trace, kept), later.full_at(job.total_bytes, on_card.context.bytes), n,
        steps_seen=len(ends), card_bytes=job.total_bytes, is_judged=is_judged,
        reserved_at_end=later.reserved_after(n) if n is not None and is_judged and ends_it else None,
    )  # fmt: skip
