"""The cheapest way to bring a job below a size: allocator options, a pool, swaps, and recomputation, each traced.

    as it is > expandable segments > one block first > pool         nothing longer
    pool, with swaps for which nothing waits                        nothing longer; a plan to follow, host memory
    recomputation of the blocks worth most, under any of these      part of the forward pass once more
    pool, with swaps that wait                                      waits
    recomputation of all blocks, and swaps for which nothing waits

The first that costs no time wins; else the one that makes a step longer by the least, by the roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from vramcast.core.errors import CannotEstimate
from vramcast.core.plain import to_plain
from vramcast.plans.blocks import ModuleBlock, blocks_by_worth
from vramcast.plans.free_options import FreeOptions, free_options
from vramcast.plans.planner import HookedSwaps, hook_swaps, plan_pool
from vramcast.plans.pool import PoolPlan
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.protocol.run_options import RunOptions

_TRIES: Final = 4  # arbitrary: traces with more and more blocks recomputed
POOL: Final = "pool"
TraceWith = Callable[[RunOptions], Trace]


@dataclass(frozen=True, slots=True)
class Mix:
    """One way to run a job.

    Attributes:
        allocator: The allocator's part: "as it is", "expandable segments", "one block first", or "pool".
        reserved_bytes: What the job then reserves, by the trace of this way.
        checkpointed: Modules to wrap in torch.utils.checkpoint.
        recompute_ms: Their forward time in a step, by the roofline.
        swaps: Swaps by hooks; None: none.
        trace: The job this way.
        pool: Its pool, if the allocator's part is one.
    """

    allocator: str
    reserved_bytes: int
    trace: Trace = field(repr=False)
    pool: PoolPlan | None = field(default=None, repr=False)
    checkpointed: tuple[str, ...] = ()
    recompute_ms: float = 0.0
    swaps: HookedSwaps | None = field(default=None, repr=False)

    @property
    def longer_ms(self) -> float:
        """By how much a step takes longer, as modeled."""
        return self.recompute_ms + (self.swaps.overhead_ms if self.swaps is not None else 0.0)

    @property
    def host_bytes(self) -> int:
        """Pinned host memory."""
        return self.swaps.host_bytes if self.swaps is not None else 0

    def __str__(self) -> str:
        """Return its parts in words."""
        n = len(self.checkpointed)
        blocks = f"{n} block{'' if n == 1 else 's'} recomputed" if n else ""
        return ", ".join(filter(None, (self.allocator, "swaps" if self.swaps is not None else "", blocks)))

    def to_dict(self) -> dict[str, Any]:
        """Return its sizes and costs as plain JSON."""
        names = ("allocator", "reserved_bytes", "checkpointed", "longer_ms", "host_bytes")
        moved_bytes = self.swaps.moved_bytes if self.swaps is not None else 0
        return {name: to_plain(getattr(self, name)) for name in names} | {"moved_bytes": moved_bytes}


@dataclass(frozen=True, slots=True)
class MixChoice:
    """The ways that were traced to stay within a size, in the order of the module's table."""

    to_bytes: int
    mixes: tuple[Mix, ...]

    @property
    def cheapest(self) -> Mix | None:
        """The mix within the size that makes a step longer by the least, the earlier one of equals; None: there is none."""
        within = (mix for mix in self.mixes if mix.reserved_bytes <= self.to_bytes)
        return min(within, key=lambda mix: mix.longer_ms, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the ways as plain JSON."""
        at = None if self.cheapest is None else self.mixes.index(self.cheapest)
        return {"bytes": self.to_bytes, "mixes": [mix.to_dict() for mix in self.mixes], "cheapest": at}


def mixes(
    watched: Trace,
    trace_with: TraceWith,
    to_bytes: int,
    free: FreeOptions,
    *,
    settings: Settings | None = None,
    link: str = "pcie4",
) -> MixChoice:
    """Return the ways to stay within a size; none is traced behind the first that does it for nothing.

    Args:
        watched: Trace with accesses and with hooks that move nothing (`RunOptions(accesses=True, swaps=())`).
        trace_with: Traces the same job with other options.
        to_bytes: The size that reserved memory is to stay within.
        free: What the watched job takes with settings that need no plan.
        settings: Allocator settings of the job.
        link: Link between host and card.

    Raises:
        CannotEstimate: The checker rejected a plan.
    """
    found: list[Mix] = []
    for mix in _without_time(watched, trace_with, settings or Settings(), link, free):
        found.append(mix)
        if mix.reserved_bytes <= to_bytes:
            return MixChoice(to_bytes, tuple(found))
    return MixChoice(to_bytes, (*found, *_with_time(watched, trace_with, to_bytes, settings or Settings(), link, found)))


def _without_time(watched: Trace, trace_with: TraceWith, settings: Settings, link: str, free: FreeOptions) -> Iterator[Mix]:
    yield from _allocated(watched, settings, free)
    if (swapped := _swapped(watched, trace_with, link)) is not None:
        yield swapped


def _with_time(
    watched: Trace, trace_with: TraceWith, to_bytes: int, settings: Settings, link: str, before: list[Mix]
) -> Iterator[Mix]:
    blocks = blocks_by_worth(watched, watched)
    held = np.cumsum([block.held_bytes for block in blocks])
    wanted, number = min(mix.reserved_bytes for mix in before) - to_bytes, 0
    for _ in range(_TRIES if blocks else 0):
        number = max(min(int(np.searchsorted(held, wanted)) + 1, len(blocks)), number + 1)
        best = _recomputed(blocks[:number], watched, trace_with, settings, to_bytes)
        yield best
        if best.reserved_bytes <= to_bytes or number == len(blocks):
            break
        wanted = int(held[number - 1]) + best.reserved_bytes - to_bytes
    if (waiting := _swapped(watched, trace_with, link, to_bytes)) is not None:
        yield waiting
    if blocks:
        paths = tuple(block.path for block in blocks)
        again: TraceWith = lambda how: trace_with(replace(how, checkpointed=paths))  # noqa: E731
        both = _swapped(again(RunOptions(accesses=True, swaps=())), again, link)
        if both is not None:
            yield replace(both, checkpointed=paths, recompute_ms=_forward_ms(blocks, watched))


def _recomputed(blocks: list[ModuleBlock], watched: Trace, trace_with: TraceWith, settings: Settings, to_bytes: int) -> Mix:
    """Return the simplest allocator that stays within a size with some blocks recomputed; if none does, the lowest."""
    paths = tuple(block.path for block in blocks)
    found = [*_allocated(trace_with(RunOptions(checkpointed=paths)), settings)]
    least = min(found, key=lambda mix: mix.reserved_bytes)
    best = next((mix for mix in found if mix.reserved_bytes <= to_bytes), least)
    return replace(best, checkpointed=paths, recompute_ms=_forward_ms(blocks, watched))


def _forward_ms(blocks: list[ModuleBlock], watched: Trace) -> float:
    """Return the forward time of some blocks in a step, which they take once more."""
    steps = len(np.unique(watched.step[watched.step >= 0]))
    return sum(block.forward_us for block in blocks) / max(steps, 1) / 1000


def _allocated(trace: Trace, settings: Settings, free: FreeOptions | None = None) -> Iterator[Mix]:
    """Yield what a job takes with each allocator, the simplest first."""
    yield Mix("as it is", simulate(trace, settings, columns=False).reserved, trace)
    free = free or free_options(trace, settings)
    yield Mix("expandable segments", free.expandable_bytes, trace)
    yield Mix("one block first", free.one_block_bytes, trace)
    yield _pooled(trace)


def _pooled(trace: Trace, swaps: HookedSwaps | None = None) -> Mix:
    pool = plan_pool(trace)
    return Mix(POOL, pool.height_bytes, trace, pool, swaps=swaps)


def _swapped(watched: Trace, trace_with: TraceWith, link: str, limit_bytes: int | None = None) -> Mix | None:
    try:
        swaps = hook_swaps(watched, trace_with, limit_bytes=limit_bytes, link=link)
    except CannotEstimate:
        return None  # hooks can move nothing in time, or not enough
    return _pooled(swaps.trace, swaps)
