"""Whether an estimated job fits on its card, as an exit code and in words: the one place where that is decided."""

from __future__ import annotations

from vramcast.estimates.result import Estimate


def verdict_of(estimate: Estimate, *, strict: bool) -> tuple[int, str]:
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
