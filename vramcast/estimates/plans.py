"""Plans of a job's memory, each proved by an independent checker before it is returned."""

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

_FULL: Final = 0.9  # arbitrary: the share of the peak that an iteration of training reaches, and an inner loop does not


def plan_pool(trace: Trace, *, work: int = pool.WORK) -> PoolPlan:
    """Place all blocks of a trace in one memory pool, by their lifetimes.

    If the trace has two equal iterations (four training steps), the plan repeats beyond the end of the trace.

    Args:
        trace: Trace of the job from its start.
        work: Search effort, in steps of the search; see `pool.plan`.

    Returns:
        The plan: an offset in bytes for each block, in the order of requests, and the pool's height in bytes.

    Raises:
        CannotEstimate: The checker rejected the plan.

    Example:
        >>> vramcast.plan_pool(est.trace).height_bytes <= est.reserved
        True
    """
    lifetimes = Lifetimes.of(trace)
    plan = pool.plan(lifetimes, iterations(trace, lifetimes), work=work)
    _proved("pool", pool_checker.check(lifetimes, plan))
    return plan


def has_reads(trace: Trace) -> bool:
    """Return whether the trace records reads of blocks, which a swap plan needs."""
    return bool((trace.action == Action.READ).any())


def iterations(trace: Trace, lifetimes: Lifetimes) -> Repetition | None:
    """Return the equal training iterations in a trace; None if nothing that reaches its peak repeats."""
    found = repetition.find(trace)
    if found is None:
        return None
    peak_bytes, _ = lifetimes.peak_live()
    inside = lifetimes.live()[found.borders[0] : found.borders[-1]]
    return found if inside.max(initial=0) >= _FULL * peak_bytes else None


def plan_swap(trace: Trace, *, limit_bytes: int | None = None, link: str = "pcie4") -> SwapPlan:
    """Plan copies of blocks to the host; see `swap.plan`.

    Args:
        trace: Trace of the job with its accesses (`RunOptions(accesses=True)`).
        limit_bytes: Memory that the blocks may take, in bytes; None: the smallest peak at which no operator waits for a copy.
        link: Link between host and card, such as `pcie4`.

    Returns:
        The plan: the copies, their times in microseconds, and the peak in bytes.

    Raises:
        UsageError: The trace has no accesses, the limit or the link is wrong, or optuna is missing.
        CannotEstimate: The checker rejected the plan.

    Example:
        >>> watched = est.estimator.estimate_job(est.job, vramcast.RunOptions(accesses=True))
        >>> vramcast.plan_swap(watched.trace).peak_bytes <= est.allocated
        True
    """
    plan = swap.plan(trace, limit_bytes=limit_bytes, link=link)
    if plan.feasible:
        _proved("swap", swap_checker.check(trace, plan).faults)
    return plan


def _proved(kind: str, faults: Sequence[str]) -> None:
    if faults:
        raise CannotEstimate(f"The checker rejected the {kind} plan: {faults[0]}. Please report the job.")
