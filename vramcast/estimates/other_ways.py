"""What a job would take if values that nobody knows were others: which further runs show it, and what follows from them.

a shape of something large            run: the largest            the bound covers it
a number that the host read
    decides, or may decide, a size    runs: the largest, the smallest; without a largest the verdict is uncertain
    decides a yes or no               run: the other way          the bound covers both
    went where nobody follows it      runs: others; if one takes more, it decides a size that has no largest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from vramcast.core.errors import CannotEstimate, JobError
from vramcast.core.units import gib
from vramcast.estimates.result import Estimate
from vramcast.tracer.format.ledger import Entered, Entry, words
from vramcast.tracer.protocol.run_options import Answers

_WAYS: Final[dict[Answers, frozenset[Entered]]] = {
    "largest": frozenset({Entered.LARGEST, Entered.SMALLEST, Entered.UNFOLLOWED}),
    "smallest": frozenset({Entered.SMALLEST, Entered.UNFOLLOWED}),
    "otherwise": frozenset({Entered.BRANCH, Entered.DECIDED}),
}
_NUMBERS: Final = (Entered.SMALLEST, Entered.DECIDED, Entered.UNFOLLOWED)
_SHAPES: Final = (Entered.LARGEST, Entered.BRANCH)
_SHOWN: Final = 200  # arbitrary: characters of why a run has no peaks


def wanted(ledger: Sequence[Entry]) -> list[Answers]:
    """Return with which other answers a job must run again."""
    kinds = {entry.kind for entry in ledger}
    return [answers for answers, of in _WAYS.items() if kinds & of]


def covered(found: Estimate, ledger: Sequence[Entry], others: Mapping[Answers, Estimate | CannotEstimate]) -> Estimate:
    """Return an estimate whose bound covers the other ways of its job.

    Args:
        found: With the answers that were drawn.
        ledger: Of its run.
        others: What each further run came to.
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
    unfollowed = words(ledger, Entered.UNFOLLOWED)
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
    """Return the further runs that show nothing: they failed, and not by the job's own error."""
    has_largest = bool(words(ledger, Entered.LARGEST, Entered.SMALLEST))
    found = set()
    for answers, other in others.items():
        if isinstance(other, Estimate):
            why = other.course.ended if other.course.is_cut else ""
        else:
            is_an_end = isinstance(other, JobError) and not (answers == "largest" and has_largest)
            why = "" if is_an_end else str(other)
        if why:
            found.add(f"the run with {answers} answers ({why[:_SHOWN]})")
    return found


def _unknown_steps(found: Estimate, runs: Sequence[Estimate]) -> set[str]:
    """Return a word on it if a command made fewer steps than were wanted, and how many depends on numbers that nobody knows."""
    steps = {found.steps, *(other.steps for other in runs)}
    is_short = found.job.command is not None and max(steps) < found.job.training.steps
    return {f"the number of training steps ({max(steps)} at most were seen)"} if is_short and len(steps) > 1 else set()


def _remarks(ledger: Sequence[Entry], ceiling: int, unbounded: Sequence[str], *, decides: bool) -> list[str]:
    said = []
    if decides and words(ledger, *_SHAPES):
        said.append(
            "shapes depend on values of more than a million elements, or on numbers that the host read, which were drawn or "
            f"not worked out: the most that is reserved with others is {gib(ceiling)}, which the bound covers"
        )
    elif decides:
        names = ", ".join(words(ledger, *_NUMBERS))
        said.append(
            f"what the job takes depends on numbers that the host read and nobody knows ({names}): the most that is reserved "
            f"with others is {gib(ceiling)}, which the bound covers"
        )
    if unbounded:
        said.append(f"there is no largest shape, and so no bound, for {', '.join(unbounded)}: measure this job on a GPU")
    return said
