"""All runs of a job, from which its estimate is built.

on its card; if that is full, on an unlimited one     always                                   on_card.py
under a second cuDNN                                  the stack's own cannot be queried        other_plans.py
with more steps                                       a loop may grow                          watched_loop.py
with other values                                     memory depends on unknown ones           other_values.py
on an infinitely slow card                            several streams share blocks             here
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from vramcast.core.checks import whole
from vramcast.core.deadline import Deadline
from vramcast.core.errors import CannotEstimate
from vramcast.core.text import shorten
from vramcast.estimates.growth import Growth
from vramcast.estimates.phases import course_of
from vramcast.estimates.runs import other_plans, other_values
from vramcast.estimates.runs.on_card import OnCard, observed_on_card
from vramcast.estimates.runs.other_plans import CudnnComparison
from vramcast.estimates.runs.other_values import OtherValues
from vramcast.estimates.runs.watched_loop import watched
from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import CallHandling
from vramcast.tracer.format.rank_facts import world_size_of
from vramcast.tracer.format.serving import serving_of
from vramcast.tracer.format.trace import MPS_LIMIT
from vramcast.tracer.observation import Tracer
from vramcast.tracer.protocol.run_options import RunOptions

_SHORT_S: Final = 60.0  # arbitrary: a run this short is repeated without an option
_SHOWN_REASON: Final = 500  # arbitrary: characters of the reason why there are no peaks


@dataclass(frozen=True, slots=True)
class JobRuns:
    """The results of a job's runs.

    Attributes:
        job: The job, with its inputs and the size of its card as they were observed.
        chosen: The run behind the estimate, and the one under a second cuDNN.
        values: Effect of unknown values.
        growth: Memory that one of its loops keeps; None if all loops settle.
        slow: The run on an infinitely slow card; None if there is none.
        remark: Why there is no run on a slow card although the speed matters; "" otherwise.
    """

    job: Job
    chosen: CudnnComparison
    values: OtherValues
    growth: Growth | None = None
    slow: OnCard | None = None
    remark: str = ""

    @property
    def on_card(self) -> OnCard:
        """The run behind the estimate."""
        return self.chosen.on_card

    @property
    def seconds(self) -> dict[str, float]:
        """Time of the runs by part, and in total without those for other values, in seconds."""
        slow_s = sum(self.slow.seconds.values()) if self.slow is not None else 0.0
        return {**self.on_card.seconds, "total": sum(self.on_card.seconds.values()) + slow_s}


def runs_of(tracer: Tracer, job: Job, options: RunOptions, deadline: Deadline, *, bracket: bool | None) -> JobRuns:
    """Run a job as often as its estimate needs.

    Args:
        tracer: The tracer.
        job: The job.
        options: How it is traced; with answers other than drawn ones, it runs once.
        deadline: Deadline of the whole answer.
        bracket: Whether a job whose peaks depend on the card's speed also runs on a slow card; None: a short one of several
            ranks does.
    Raises:
        DoesNotFit, CannotEstimate: See `observed_on_card`.
    """
    chosen, growth = other_plans.observed(tracer, job, options, deadline), None
    if options.answers != "drawn":
        return JobRuns(_observed(job, chosen.on_card), chosen, OtherValues.unseen(chosen.on_card))
    serving = serving_of(chosen.on_card.seen.trace)
    has_divided = serving is not None and serving.starts is not None
    if not options.slow and not has_divided:
        checked = watched(tracer, job, chosen.options, chosen.on_card, deadline)
        chosen, growth = replace(chosen, on_card=checked.on_card), checked.growth
    chosen = replace(chosen, on_card=chosen.on_card.with_smallest_cards())
    runs = JobRuns(_observed(job, chosen.on_card), chosen, OtherValues.unseen(chosen.on_card), growth)
    if has_divided:
        return runs  # the engine's own check decides; steps, other values and a slow card change nothing
    runs = replace(runs, values=other_values.observed(tracer, runs.job, chosen, deadline))
    return _with_slow_card(runs, tracer, deadline, bracket)


def _observed(job: Job, on_card: OnCard) -> Job:
    """Return a job with what its run showed of it.

    Raises:
        CannotEstimate: The run used NVIDIA's own libraries.
    """
    seen = on_card.seen
    if seen.foreign:
        raise CannotEstimate(
            f"NVIDIA's own libraries were loaded together with the null GPU ({', '.join(seen.foreign)}), so the numbers are "
            "unreliable: please report the torch version and how it was installed."
        )
    job = job.with_inputs(seen.inputs)
    limit_bytes = seen.trace.header.get(MPS_LIMIT)
    if limit_bytes is None:
        return job
    return replace(job, memory_bytes=min(whole(MPS_LIMIT, limit_bytes, least=1), job.total_bytes))


def _with_slow_card(runs: JobRuns, tracer: Tracer, deadline: Deadline, bracket: bool | None) -> JobRuns:
    """Add the run on an infinitely slow card, if the speed may change the peaks and the caller wants it."""
    course, took_s = course_of(runs.on_card.trace), runs.on_card.seconds["trace"]
    decides = any(entry.kind is CallHandling.SPEED for entry in runs.on_card.trace.ledger)
    if not decides or course.is_interrupted:
        return runs
    is_wanted = world_size_of(runs.on_card.trace) > 1 and took_s <= _SHORT_S if bracket is None else bracket
    if not is_wanted:
        text = "the peak depends on the card's speed, which is assumed to be infinite: add --bracket to cover slow cards"
        return replace(runs, remark=text)
    try:
        # arbitrary: a job that polls for an event never ends there
        timeout_s = min(deadline.left_s(), 10 + 5 * took_s)
        slow = observed_on_card(tracer, runs.job, replace(runs.chosen.options, slow=True), timeout_s=timeout_s)
        why = "" if course.ended else course_of(slow.trace).ended  # an early end gives only the peaks so far
    except CannotEstimate as error:
        why = str(error)
    if why:
        text = f"on an infinitely slow card the job stopped earlier ({shorten(why, _SHOWN_REASON)})"
        return replace(runs, remark=f"{text}: the bound does not cover slow cards")
    return replace(runs, slow=slow)
