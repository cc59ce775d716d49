"""What a shell script runs on the card, and when: commands one after the other, and at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Step:
    """One command that trains.

    Attributes:
        words: As `vramcast run` takes them.
        environment: What the script sets for it.
        folder: Where it runs, below the job's folder.
        world_size: Its ranks, where no launcher among its words says them.
        nproc_per_node: Of them on each machine.
        copies: Of its processes on one card.
    """

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    folder: str = "."
    world_size: int | None = None
    nproc_per_node: int | None = None
    copies: int = 1


@dataclass(frozen=True, slots=True)
class InTurn:
    """Parts that run one after the other: they take what the largest takes."""

    parts: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Together:
    """Parts that may run at the same time: they take the sum."""

    parts: tuple[Plan, ...]


Plan: TypeAlias = "Step | InTurn | Together"


def steps(plan: Plan) -> dict[Step, None]:
    """Return the commands of a plan, each once, in order."""
    return {plan: None} if isinstance(plan, Step) else {step: None for part in plan.parts for step in steps(part)}


def peak_bytes(plan: Plan, sizes: Mapping[Step, int]) -> int:
    """Return what a plan takes, if its commands take so much."""
    if isinstance(plan, Step):
        return sizes[plan] * plan.copies
    parts = (peak_bytes(part, sizes) for part in plan.parts)
    return sum(parts) if isinstance(plan, Together) else max(parts, default=0)


def moments(plan: InTurn) -> InTurn:
    """Return a plan without the parts that it has twice."""
    return InTurn(tuple(dict.fromkeys(plan.parts)))


def to_plain(plan: Plan, numbers: Mapping[Step, int]) -> Any:
    """Return a plan for JSON, each command as its number."""
    if isinstance(plan, Step):
        return numbers[plan]
    return {"together" if isinstance(plan, Together) else "in_turn": [to_plain(part, numbers) for part in plan.parts]}


def from_plain(found: Any, known: list[Step]) -> Plan:
    """Return the plan in what `to_plain` made.

    Raises:
        ValueError: it is none.
    """
    if isinstance(found, int) and 0 <= found < len(known):
        return known[found]
    if not isinstance(found, dict) or len(found) != 1:
        raise ValueError("a part of the plan is none")
    ((name, parts),) = found.items()
    if name not in ("together", "in_turn") or not isinstance(parts, list):
        raise ValueError("a part of the plan is none")
    made = tuple(from_plain(part, known) for part in parts)
    return Together(made) if name == "together" else InTurn(made)
