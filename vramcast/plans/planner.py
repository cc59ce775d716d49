"""Plans of a job's memory, each proved by an independent checker before it is returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.errors import CannotEstimate
from vramcast.core.plain import to_plain
from vramcast.core.units import gib
from vramcast.plans import pool, pool_checker, repetition, saved_tensors, swap, swap_checker
from vramcast.plans.lifetimes import Lifetimes
from vramcast.plans.pool import PoolPlan
from vramcast.plans.repetition import Repetition
from vramcast.plans.saved_tensors import SavedTensors
from vramcast.plans.swap import SwapPlan
from vramcast.plans.swap_timeline import SwapTimeline
from vramcast.tracer.format.trace import Action, Trace
from vramcast.tracer.protocol.run_options import RunOptions
from vramcast.tracer.protocol.swap_rounds import SavedRound

_TRIES: Final = 5  # arbitrary: traces with hooks; each one removes storages that others hold, or lowers the target
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


@dataclass(frozen=True, slots=True)
class HookedSwaps:
    """Swaps by hooks on saved tensors, as the job makes them.

    Attributes:
        rounds: The schedule of the hooks.
        trace: The job with its hooks.
        peak_bytes: Its most live bytes.
        moved_bytes: Copied out in a step, and in again.
        host_bytes: Pinned host memory.
        overhead_ms: Time that a step waits for copies, by the clock of the plan.
        kept_bytes: Storages that the plan would move, but that the job holds itself, such as logits.
    """

    rounds: tuple[SavedRound, ...]
    trace: Trace
    peak_bytes: int
    moved_bytes: int
    host_bytes: int
    overhead_ms: float
    kept_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule and its sizes as plain JSON."""
        names = ("peak_bytes", "moved_bytes", "host_bytes", "overhead_ms", "kept_bytes", "rounds")
        return {name: to_plain(getattr(self, name)) for name in names}


def hook_swaps(
    watched: Trace, trace_with: Callable[[RunOptions], Trace], *, limit_bytes: int | None = None, link: str = "pcie4"
) -> HookedSwaps:
    """Plan swaps that hooks on saved tensors can make, and trace the job with these hooks.

    Storages that the job holds itself gain nothing on the host: the trace shows them, and the next plan leaves them alone.

    Args:
        watched: Trace with accesses and with hooks that move nothing (`RunOptions(accesses=True, swaps=())`).
        trace_with: Traces the same job with other options.
        limit_bytes: Limit of live bytes; None: the lowest peak at which nothing waits, by the modeled times.
        link: Link between host and card.

    Returns:
        The schedule and the job's trace with it.

    Raises:
        CannotEstimate: Hooks on saved tensors cannot keep the limit, or the job saves other tensors when it is traced again.
    """
    without: set[tuple[int, int]] = set()
    target = limit_bytes
    step = SwapTimeline.of(watched).step
    saved = SavedTensors.of(watched, step)
    for _ in range(_TRIES):
        plan = swap.plan(watched, limit_bytes=target, link=link, among=saved.blocks(without))
        if not plan.feasible:
            raise CannotEstimate(
                f"Hooks on saved tensors get down to {gib(plan.peak_bytes)}, and the limit is {gib(target or 0)}: give a "
                "larger --limit."
            )
        rounds = saved.follow(plan)
        if limit_bytes is None:  # calls of hooks are further apart than the plan's microseconds
            rounds = saved.without_waiting(rounds, plan.link)
            if not any(this.moves for this in rounds):
                raise CannotEstimate(
                    "Hooks on saved tensors can move nothing in time, and do not see inside what torch.compile compiles: plan "
                    "only the pool (--pool), or try a --limit."
                )
        trace = trace_with(RunOptions(swaps=rounds))
        found = SavedTensors.of(trace, step)
        if [this.size_bytes for this in found.rounds] != [this.size_bytes for this in saved.rounds]:
            raise CannotEstimate(
                "The job saves other tensors each time that it is traced, so no hooks can follow a plan of it."
            )
        peak_bytes, _ = trace.peak_live()
        kept = found.kept() - without
        without |= kept
        over_bytes = 0 if limit_bytes is None else peak_bytes - limit_bytes
        if not kept and over_bytes <= 0:
            return HookedSwaps(
                rounds=rounds,
                trace=trace,
                peak_bytes=peak_bytes,
                moved_bytes=saved_tensors.moved_bytes(rounds),
                host_bytes=saved_tensors.host_bytes(rounds),
                overhead_ms=saved.overhead_us(rounds, plan.link) / 1000,
                kept_bytes=sum(saved.rounds[number].size_bytes[one] for number, one in without),
            )
        if not kept and target is not None:
            target -= over_bytes
    raise CannotEstimate(f"No schedule of hooks was found in {_TRIES} traces of the job: give another --limit.")


def _proved(kind: str, faults: Sequence[str]) -> None:
    if faults:
        raise CannotEstimate(f"The checker rejected the {kind} plan: {faults[0]}. Please report the job.")
