"""The training commands of a shell script, in sequence and in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One training command.

    Attributes:
        words: Its words, as for `vramcast run`.
        environment: Variables that the script sets for it.
        folder: Its folder, relative to the job's folder.
        world_size: Number of its ranks, if no launcher among its words sets them.
        nproc_per_node: Number of ranks on each machine.
        copies: Number of its processes on one card.
    """

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    folder: str = "."
    world_size: int | None = None
    nproc_per_node: int | None = None
    copies: int = 1


@dataclass(frozen=True, slots=True)
class InTurn:
    """Sequential parts: the peak is the largest of their peaks."""

    parts: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Together:
    """Parts that may run at the same time: the peak is the sum of their peaks."""

    parts: tuple[Plan, ...]


Plan: TypeAlias = "ScriptStep | InTurn | Together"


def steps(plan: Plan) -> dict[ScriptStep, None]:
    """Return the commands of a plan, each once, in order."""
    return {plan: None} if isinstance(plan, ScriptStep) else {step: None for part in plan.parts for step in steps(part)}


def peak_bytes(plan: Plan, sizes: Mapping[ScriptStep, int]) -> int:
    """Return the peak of a plan in bytes, from the peaks of its commands."""
    if isinstance(plan, ScriptStep):
        return sizes[plan] * plan.copies
    parts = (peak_bytes(part, sizes) for part in plan.parts)
    return sum(parts) if isinstance(plan, Together) else max(parts, default=0)


def moments(plan: InTurn) -> InTurn:
    """Return a plan without duplicate parts."""
    return InTurn(tuple(dict.fromkeys(plan.parts)))


def to_plain(plan: Plan, numbers: Mapping[ScriptStep, int]) -> Any:
    """Return a plan as JSON values, with each command as its number."""
    if isinstance(plan, ScriptStep):
        return numbers[plan]
    return {"together" if isinstance(plan, Together) else "in_turn": [to_plain(part, numbers) for part in plan.parts]}


def from_plain(found: Any, known: list[ScriptStep]) -> Plan:
    """Return the plan from the result of `to_plain`.

    Raises:
        ValueError: The value is not a plan.
    """
    if isinstance(found, int) and 0 <= found < len(known):
        return known[found]
    if not isinstance(found, dict) or len(found) != 1:
        raise ValueError("a part of the plan is malformed")
    ((name, parts),) = found.items()
    if name not in ("together", "in_turn") or not isinstance(parts, list):
        raise ValueError("a part of the plan is malformed")
    made = tuple(from_plain(part, known) for part in parts)
    return Together(made) if name == "together" else InTurn(made)
