"""Plans of a job's memory which an independent checker has proved: no other plan leaves this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vramcast.core.errors import CannotEstimate
from vramcast.simulator.planning import pool, pool_checker, repetition, swap, swap_checker
from vramcast.simulator.planning.lifetimes import Lifetimes
from vramcast.simulator.planning.pool import PoolPlan
from vramcast.simulator.planning.repetition import Repetition
from vramcast.simulator.planning.swap import SwapPlan
from vramcast.tracer.format.trace import Action, Trace

_FULL: Final = 0.9  # arbitrary: the share of the peak which an iteration of training reaches, and a loop inside of one does not


def plan_pool(trace: Trace, *, work: int = pool.WORK) -> PoolPlan:
    """Return where each block of `trace` goes, in the order of requests.

    Where the trace shows two equal iterations (four steps of training), the plan goes on behind the trace for ever.

    Args:
        trace: Of the job from its start.
        work: How long to search, see `pool.plan`.
    Raises:
        CannotEstimate: The checker refutes the plan.
    """
    lifetimes = Lifetimes.of(trace)
    plan = pool.plan(lifetimes, iterations(trace, lifetimes), work=work)
    _proved("pool", pool_checker.check(lifetimes, plan))
    return plan


def has_reads(trace: Trace) -> bool:
    """Return whether the trace says when blocks are read, without which nothing can be swapped."""
    return bool((trace.action == Action.READ).any())


def iterations(trace: Trace, lifetimes: Lifetimes) -> Repetition | None:
    """Return the equal iterations of training in `trace`; None where nothing that reaches its peak repeats."""
    found = repetition.find(trace)
    if found is None:
        return None
    peak_bytes, _ = lifetimes.peak_live()
    inside = lifetimes.live()[found.borders[0] : found.borders[-1]]
    return found if inside.max(initial=0) >= _FULL * peak_bytes else None


def plan_swap(trace: Trace, *, limit_bytes: int | None = None, link: str = "pcie4") -> SwapPlan:
    """Return what to copy to the host and when; see `swap.plan`.

    Raises:
        UsageError: The trace has no accesses, the limit or the link is wrong, or optuna is missing.
        CannotEstimate: The checker refutes the plan.
    """
    plan = swap.plan(trace, limit_bytes=limit_bytes, link=link)
    if plan.feasible:
        _proved("swap", swap_checker.check(trace, plan).faults)
    return plan


def _proved(kind: str, faults: Sequence[str]) -> None:
    if faults:
        raise CannotEstimate(f"The {kind} plan is wrong, says its checker: {faults[0]}. Please report the job.")
