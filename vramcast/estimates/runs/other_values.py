"""Further runs of a job whose memory depends on unknown values, on an unlimited card, and their effect on the bound.

a large tensor's shape                run: the largest              the bound covers it
a number that the host read
    sets, or may set, a size          runs: largest and smallest    without a largest, the verdict is uncertain
    decides a branch                  run: the other branch         the bound covers both
    could not be followed             runs: largest and smallest    if one takes more, the size has no largest value

If a job raises on such an answer, it ends there on a GPU too, so that branch needs no bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vramcast.core.deadline import Deadline
from vramcast.core.errors import CannotEstimate, JobError
from vramcast.core.units import gib
from vramcast.estimates.phases import course_of
from vramcast.estimates.runs.on_card import OnCard, observed_on_card
from vramcast.estimates.runs.other_plans import CudnnComparison
from vramcast.estimates.verdict import ANOTHER_RUN
from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import CallHandling, Entry, words
from vramcast.tracer.observation import Tracer
from vramcast.tracer.protocol.run_options import Answers

_WAYS: Final[dict[Answers, frozenset[CallHandling]]] = {
    "largest": frozenset({CallHandling.LARGEST, CallHandling.SMALLEST, CallHandling.UNFOLLOWED}),
    "smallest": frozenset({CallHandling.SMALLEST, CallHandling.UNFOLLOWED}),
    "otherwise": frozenset({CallHandling.BRANCH, CallHandling.DECIDED}),
}
_NUMBERS: Final = (CallHandling.SMALLEST, CallHandling.DECIDED, CallHandling.UNFOLLOWED)
_SHAPES: Final = (CallHandling.LARGEST, CallHandling.BRANCH)
_NAMES: Final[dict[Answers, str]] = {
    "largest": "the largest values", "smallest": "the smallest values", "otherwise": "each branch reversed",
}  # fmt: skip
_SHOWN: Final = 200  # arbitrary: characters of the reason why a run has no peaks


@dataclass(frozen=True, slots=True)
class OtherValues:
    """The effect of unknown values on a job's memory.

    Attributes:
        reserved: Largest reserved peak with other values, in bytes; None if the values do not matter.
        unbounded_calls: Names of the calls without a largest size.
        decide: Whether the values decide the peak.
        remarks: Remarks for the reader, one sentence each.
    """

    reserved: int | None
    unbounded_calls: tuple[str, ...]
    decide: bool = False
    remarks: tuple[str, ...] = ()

    @classmethod
    def unseen(cls, found: OnCard) -> OtherValues:
        """Return what the first run alone shows of other values."""
        return cls(None, words(found.seen.ledger, CallHandling.OPEN))


def wanted(ledger: Sequence[Entry]) -> list[Answers]:
    """Return the other answers with which a job must run again."""
    kinds = {entry.kind for entry in ledger}
    return [answers for answers, of in _WAYS.items() if kinds & of]


def observed(tracer: Tracer, job: Job, chosen: CudnnComparison, deadline: Deadline) -> OtherValues:
    """Run a job again for each answer that may change its memory.

    Args:
        tracer: The tracer.
        job: The job.
        chosen: Its run with drawn answers.
        deadline: Deadline of the whole answer.
    """
    found = chosen.on_card
    way = replace(chosen.options, follow_values=True, limited=False, expandable=found.seen.was_expandable)
    # arbitrary: other answers may lead to an endless loop
    most_s = 10 + (3 if job.command else 10) * sum(found.seconds.values())
    others: dict[Answers, OnCard | CannotEstimate] = {}
    for answers in wanted(found.seen.ledger):
        course = course_of(found.trace)
        if course.is_interrupted:
            others[answers] = CannotEstimate(course.ended)
            continue
        try:
            limit_s = min(deadline.left_s(), most_s)
            others[answers] = observed_on_card(tracer, job, replace(way, answers=answers), timeout_s=limit_s)
        except CannotEstimate as error:
            others[answers] = error
    return _effect(job, found, others)


def _effect(job: Job, found: OnCard, others: Mapping[Answers, OnCard | CannotEstimate]) -> OtherValues:
    ledger, runs = found.seen.ledger, [other for other in others.values() if isinstance(other, OnCard)]
    ceiling = max([found.reserved, *(other.reserved for other in runs)])
    unbounded = {call for one in (found, *runs) for call in words(one.seen.ledger, CallHandling.OPEN)}
    unbounded |= _without_answer(ledger, others) | _unknown_steps(job, [found, *runs])
    if ceiling > found.reserved:
        unbounded |= {*words(ledger, CallHandling.UNFOLLOWED)}
    decide = bool(words(ledger, *_SHAPES)) or ceiling > found.reserved or bool(unbounded)
    remarks = _remarks(ledger, ceiling, sorted(unbounded), decides=decide and bool(others))
    return OtherValues(ceiling if others and decide else None, tuple(sorted(unbounded)), decide, tuple(remarks))


def _without_answer(ledger: Sequence[Entry], others: Mapping[Answers, OnCard | CannotEstimate]) -> set[str]:
    """Return descriptions of the further runs that failed, other than by the job's own error."""
    has_largest = bool(words(ledger, CallHandling.LARGEST, CallHandling.SMALLEST))
    found = set()
    for answers, other in others.items():
        if isinstance(other, OnCard):
            course = course_of(other.trace)
            why = course.ended if course.is_cut else ""
        else:
            is_an_end = isinstance(other, JobError) and not other.is_of_machine and not (answers == "largest" and has_largest)
            why = "" if is_an_end else str(other)
        if why:
            found.add(f"{ANOTHER_RUN}with {_NAMES[answers]} ({why[:_SHOWN]})")
    return found


def _unknown_steps(job: Job, runs: Sequence[OnCard]) -> set[str]:
    """Return a description if a command made too few steps, and their number depends on unknown values."""
    steps = {run.seen.steps for run in runs}
    is_short = job.command is not None and max(steps) < job.training.steps
    return {f"the number of training steps (at most {max(steps)} were observed)"} if is_short and len(steps) > 1 else set()


def _remarks(ledger: Sequence[Entry], ceiling: int, unbounded: Sequence[str], *, decides: bool) -> list[str]:
    said = []
    if decides and words(ledger, *_SHAPES):
        said.append(
            "shapes depend on values of more than a million elements, or on numbers that the host read, which were drawn or "
            f"not computed: the largest reserved peak with other values is {gib(ceiling)}, which the bound covers"
        )
    elif decides:
        names = ", ".join(words(ledger, *_NUMBERS))
        said.append(
            f"the job's memory depends on unknown numbers that the host read ({names}): the largest reserved peak with other "
            f"values is {gib(ceiling)}, which the bound covers"
        )
    if unbounded:
        said.append(f"no largest size is known, so no bound holds, for {', '.join(unbounded)}: measure this job on a GPU")
    return said
