"""Whether an estimated job fits on its card: the one place where that is decided."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from vramcast.estimates.phases import Course

Verdict: TypeAlias = Literal["fits", "uncertain", "does not fit"]


class Judged(Protocol):
    """What a verdict asks of an `Estimate`."""

    @property
    def unbounded_calls(self) -> tuple[str, ...]:
        """Calls that no bound covers."""

    @property
    def course(self) -> Course:
        """How far a command was followed."""

    def fits(self) -> bool:
        """Return whether the bound fits."""

    def point_fits(self) -> bool:
        """Return whether the point estimate fits."""


def verdict(estimate: Judged) -> Verdict:
    """Return whether the upper bound fits on the job's card, the point estimate alone, or not even that."""
    return "fits" if estimate.fits() else "uncertain" if estimate.point_fits() else "does not fit"


def verdict_of(estimate: Judged, *, strict: bool) -> tuple[int, str]:
    """Return the exit code of the contract (0 fits, 1 does not, 4 uncertain) and the verdict in words.

    Without `strict` the point estimate decides, with it the bound must fit too. Where no bound holds, neither decides.
    """
    if not estimate.point_fits():
        return 1, "does not fit"
    if estimate.unbounded_calls:
        return 4, f"uncertain: there is no largest shape, and so no bound, for {', '.join(estimate.unbounded_calls)}"
    if estimate.course.ended:
        return 4, "uncertain: what was reached fits, and the command ended before its time"
    if strict and estimate.course.not_reached:
        return 4, f"uncertain: what was reached fits, and this was not: {'; '.join(estimate.course.not_reached)}"
    if estimate.fits():
        return 0, "fits"
    return (4, "uncertain") if strict else (0, "fits, but its upper bound does not")
