"""Request policies: ladders of plain numbers, from any estimator. After the last rung comes the whole card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RETRY_FACTOR: Final = 1.5  # arbitrary: above nearly every observed error, below most shares of a card
WHOLE_CARD: Final[tuple[int, ...]] = ()  # the ladder of an unknown job


def with_margin(estimate_bytes: int, share: float = 0.0, constant_bytes: int = 0) -> tuple[int, ...]:
    """Return the ladder of a point estimate with a margin, the common use of most tools."""
    return (round(estimate_bytes * (1 + share)) + constant_bytes,)


def from_level(bounds: Mapping[float, int], level: float) -> tuple[int, ...]:
    """Return the bounds at `level` and above: the first request, and one for each death."""
    return tuple(bounds[at] for at in sorted(bounds) if at >= level)


def from_point(estimate_bytes: int, bounds: Mapping[float, int]) -> tuple[int, ...]:
    """Return the point estimate, then every bound above it; the one at 0.5 is an estimate itself, not a second attempt."""
    return (estimate_bytes, *(bounds[at] for at in sorted(bounds) if at > 0.5 and bounds[at] > estimate_bytes))


def with_retry(ladder: tuple[int, ...], factor: float = RETRY_FACTOR) -> tuple[int, ...]:
    """Return the ladder with one more rung, `factor` times the last, so that a job that died does not block a card at once."""
    return (*ladder, round(ladder[-1] * factor)) if ladder else ladder
