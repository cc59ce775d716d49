"""Further runs of a job that depends on unknown values, and their effect on the bound.

a large tensor's shape                run: the largest              the bound covers it
a number that the host read
    sets, or may set, a size          runs: largest and smallest    without a largest, the verdict is uncertain
    decides a branch                  run: the other branch         the bound covers both
    could not be followed             runs: largest and smallest    if one takes more, the size has no largest value
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from vramcast.core.errors import CannotEstimate, JobError
from vramcast.core.units import gib
from vramcast.estimates.result import Estimate
from vramcast.estimates.verdict import ANOTHER_RUN
from vramcast.tracer.format.ledger import CallHandling, Entry, words
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


def wanted(ledger: Sequence[Entry]) -> list[Answers]:
    """Return the other answers with which a job must run again."""
    kinds = {entry.kind for entry in ledger}
    return [answers for answers, of in _WAYS.items() if kinds & of]


def covered(found: Estimate, ledger: Sequence[Entry], others: Mapping[Answers, Estimate | CannotEstimate]) -> Estimate:
    """Return an estimate with a bound that covers the other answers.

    Args:
        found: The estimate with drawn answers.
        ledger: Ledger of its run.
        others: Results of the further runs.
    """
    if not others and not found.unbounded_calls:
        return found
    runs = [other for other in others.values() if isinstance(other, Estimate)]
    ceiling = max(found.reserved, *(other.reserved for other in runs)) if runs else found.reserved
    unbounded = {
        *found.unbounded_calls,
        *_without_answer(ledger, others),
        *(call for one in runs for call in one.unbounded_calls),
    }
    unfollowed = words(ledger, CallHandling.UNFOLLOWED)
    if unfollowed and any(other.reserved > found.reserved for other in runs):
        unbounded |= {*unfollowed}
    unbounded |= _unknown_steps(found, runs)
    has_shapes = bool(words(ledger, *_SHAPES))
    decides = has_shapes or ceiling > found.reserved or bool(unbounded)
    return replace(
        found,
        max_shape_reserved_bytes=ceiling if others and decides else None,
        unbounded_calls=tuple(sorted(unbounded)),
        traits={**found.traits, "values": "drawn"} if found.traits and decides else found.traits,
        warnings=(*found.warnings, *_remarks(ledger, ceiling, sorted(unbounded), decides=decides and bool(others))),
    )


def _without_answer(ledger: Sequence[Entry], others: Mapping[Answers, Estimate | CannotEstimate]) -> set[str]:
    """Return descriptions of the further runs that failed, other than by the job's own error."""
    has_largest = bool(words(ledger, CallHandling.LARGEST, CallHandling.SMALLEST))
    found = set()
    for answers, other in others.items():
        if isinstance(other, Estimate):
            why = other.course.ended if other.course.is_cut else ""
        else:
            is_an_end = isinstance(other, JobError) and not other.is_of_machine and not (answers == "largest" and has_largest)
            why = "" if is_an_end else str(other)
        if why:
            found.add(f"{ANOTHER_RUN}with {_NAMES[answers]} ({why[:_SHOWN]})")
    return found


def _unknown_steps(found: Estimate, runs: Sequence[Estimate]) -> set[str]:
    """Return a description if a command made too few steps, and their number depends on unknown values."""
    steps = {found.steps, *(other.steps for other in runs)}
    is_short = found.job.command is not None and max(steps) < found.job.training.steps
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
