"""Whether an estimated job fits on a card: decided here alone, for every verb, page, hook and file.

*Fits* has one meaning: the upper bound is no larger than the card, and nothing that matters is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from vramcast.core.units import gib
from vramcast.estimates.growth import Growth
from vramcast.estimates.phases import Course
from vramcast.hardware.device import Device

Value: TypeAlias = Literal["fits", "does not fit", "uncertain"]
# spec: the exit codes of the contract
EXIT_CODES: Final[dict[Value, int]] = {"fits": 0, "does not fit": 1, "uncertain": 4}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a job fits on a card, and why.

    Attributes:
        value: `fits`, `does not fit` or `uncertain`.
        reason: What decided it, in words; never empty.
    """

    value: Value
    reason: str

    @property
    def exit_code(self) -> int:
        """How `vramcast check` ends: 0 fits, 1 does not fit, 4 uncertain."""
        return EXIT_CODES[self.value]

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values, the same wherever an answer is given as JSON."""
        return {"value": self.value, "exit_code": self.exit_code, "reason": self.reason}

    def __str__(self) -> str:
        return f"{self.value}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Need:
    """What a job needs of a card.

    Attributes:
        card: The card, with the memory that the job may use.
        point_bytes: The point estimate of the process peak there.
        bound_bytes: Its upper bound, at least the point.
        runs_out_of_memory: Whether the card is too small for the point, or the job ran out of memory when it was traced on it.
    """

    card: Device
    point_bytes: int
    bound_bytes: int
    runs_out_of_memory: bool


class Seen(Protocol):
    """What the verdict asks of an `Estimate`."""

    @property
    def unbounded_calls(self) -> tuple[str, ...]:
        """Calls of which no largest shape exists."""

    @property
    def course(self) -> Course:
        """How far a training command was followed."""

    @property
    def growth(self) -> Growth | None:
        """What a loop keeps from step to step."""


def verdict_of(estimate: Seen, need: Need, level: float) -> Verdict:
    """Return the verdict on a card.

    Args:
        estimate: The job's.
        need: What the job needs there.
        level: Of the bound, in (0, 1).
    """
    card = f"{need.card.name} has {gib(need.card.total_bytes)}"
    if need.runs_out_of_memory:
        return Verdict("does not fit", f"the job needs {gib(need.point_bytes)}; {card}")
    growth = estimate.growth
    if growth is not None and growth.fills(need.card.total_bytes):
        return Verdict("does not fit", f"{growth}; {card}")
    found = [*doubts(estimate)]
    if found:
        return Verdict("uncertain", f"{'; '.join(found)}. What was seen needs {gib(need.point_bytes)}; {card}")
    sizes = f"the job needs {gib(need.point_bytes)}, at most {gib(need.bound_bytes)} at level {level:g}; {card}"
    return Verdict("fits" if need.bound_bytes <= need.card.total_bytes else "uncertain", sizes)


def doubts(estimate: Seen) -> Iterator[str]:
    """Yield what is unknown and matters, so that no bound holds for the whole job, in words."""
    if estimate.unbounded_calls:
        yield f"no bound holds, since these calls have no largest shape: {', '.join(estimate.unbounded_calls)}"
    if estimate.course.ended:
        yield f"the command ended early ({estimate.course.ended})"
    if estimate.course.not_reached:
        yield f"not seen: {', '.join(estimate.course.not_reached)}"
    if estimate.growth is not None and estimate.growth.reserved_at_end is None:
        yield str(estimate.growth)
