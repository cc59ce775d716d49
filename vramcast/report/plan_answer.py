"""The answer of `vramcast plan`: text for a terminal, and JSON that `vramcast/schema/plan.schema.json` describes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.plain import to_plain
from vramcast.core.units import gib
from vramcast.plans.free_options import FreeOptions
from vramcast.plans.mixes import POOL, Mix, MixChoice
from vramcast.plans.planner import HookedSwaps
from vramcast.plans.pool import PoolPlan
from vramcast.plans.swap import SwapPlan
from vramcast.report.answer_json import SCHEMA

_INDENT: Final = " " * 33  # of what goes on below a line's words


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The plans of one job; a plan that was not made is None.

    Attributes:
        device: Key of the card that the job was traced for; None: a recorded history.
        peak_bytes: Peak of live blocks.
        caching_bytes: What the caching allocator reserves.
        free: What the job takes with settings that need no plan.
        pool: A place for each block.
        swap: Copies of blocks to the host.
        hooks: The swaps that hooks on saved tensors make.
        choice: The ways to stay within a size.
    """

    device: str | None
    peak_bytes: int
    caching_bytes: int
    free: FreeOptions
    pool: PoolPlan | None = None
    swap: SwapPlan | None = None
    hooks: HookedSwaps | None = None
    choice: MixChoice | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        pool, swap = self.pool, self.swap
        return {
            "schema": SCHEMA,
            "device": self.device,
            "peak_live": self.peak_bytes,
            "pool": pool and {**self._size(pool.height_bytes), "algorithm": pool.algorithm, "seconds": pool.seconds},
            "caching": self._size(self.caching_bytes),
            "swap": swap
            and {
                "limit": swap.limit_bytes,
                "feasible": swap.feasible,
                "moved_bytes": swap.moved_bytes,
                "overhead_ms": swap.overhead_ms,
                "schedule": to_plain(swap.schedule),
                "hooks": self.hooks and self.hooks.to_dict(),
            },
            "free_options": to_plain(self.free),
            "to": self.choice and self.choice.to_dict(),
        }

    def text(self) -> str:
        """Return the answer for a terminal."""
        return "\n".join(self._lines() if self.choice is None else _choice_lines(self.choice))

    def _size(self, size_bytes: int) -> dict[str, Any]:
        return {"bytes": size_bytes, "ratio": size_bytes / self.peak_bytes if self.peak_bytes else None}

    def _lines(self) -> Iterator[str]:
        peak_bytes, caching_bytes, free = self.peak_bytes, self.caching_bytes, self.free
        yield _line("peak of live", peak_bytes, "minimum of a perfect pool")
        yield _line("caching allocator", caching_bytes, f"{caching_bytes / peak_bytes:.4f} times that")
        yield _line("  expandable", free.expandable_bytes, "expandable_segments:True; needs no plan")
        yield _line("  one block first", free.one_block_bytes, f"{gib(free.first_bytes)} freed before the job; needs no plan")
        if (pool := self.pool) is not None:
            saved = _against(pool.height_bytes, caching_bytes)
            best = _against(pool.height_bytes, min(caching_bytes, free.least_bytes))
            words = f"{pool.height_bytes / peak_bytes:.4f} times that, {saved} the caching allocator, checked"
            yield _line("pool", pool.height_bytes, words)
            yield f"{_INDENT}{best} the best of the three; {pool.algorithm}; {pool.seconds:.1f} s"
        if self.swap is not None:
            yield from _swap_lines(self.swap)
        if self.hooks is not None:
            yield from _hooks_lines(self.hooks, peak_bytes)


def _line(name: str, size_bytes: int, words: str) -> str:
    return f"{name:<18}{gib(size_bytes):>12}   {words}"


def _against(size_bytes: int, other_bytes: int) -> str:
    change = size_bytes / other_bytes - 1
    return f"{abs(change):.1%} {'above' if change > 0 else 'below'}"


def _swap_lines(swap: SwapPlan) -> Iterator[str]:
    if swap.overhead_ms is not None:
        share = swap.overhead_ms / swap.step_ms if swap.step_ms else 0.0
        lower = 1 - swap.peak_bytes / swap.peak_live_bytes
        yield _line("swapping", swap.peak_bytes, f"{lower:.1%} below the live peak of step {swap.step}, checked")
        yield f"{_INDENT}{gib(swap.moved_bytes)} out and in per step over {swap.link.name}, {len(swap.schedule)} blocks"
        yield f"{_INDENT}{swap.overhead_ms:.1f} ms longer per step, {share:.1%} of {swap.step_ms:.1f} ms ({swap.time_source})"
    elif swap.limit_bytes is not None:
        words = f"the lowest peak with swapping: above the limit of {gib(swap.limit_bytes)}"
        yield _line("swapping", swap.peak_bytes, words)


def _hooks_lines(hooks: HookedSwaps, peak_bytes: int) -> Iterator[str]:
    words = f"{1 - hooks.peak_bytes / peak_bytes:.1%} below the peak of live, as traced with its hooks on saved tensors"
    yield _line("swapping, by hooks", hooks.peak_bytes, words)
    yield f"{_INDENT}{gib(hooks.moved_bytes)} out and in per step, {gib(hooks.host_bytes)} of pinned host memory"
    yield f"{_INDENT}{hooks.overhead_ms:.1f} ms longer per step, by the same times"
    if hooks.kept_bytes:
        yield f"{_INDENT}{gib(hooks.kept_bytes)} stay: the job holds them itself, as it does its logits"


def _choice_lines(choice: MixChoice) -> Iterator[str]:
    best = choice.cheapest
    for mix in choice.mixes:
        yield f"{'>' if mix is best else ' '} {mix!s:<44}{gib(mix.reserved_bytes):>12}   {_cost(mix)}".rstrip()
    if best is None:
        least_bytes = min(mix.reserved_bytes for mix in choice.mixes)
        yield f"No way stays within {gib(choice.to_bytes)}: the least is {gib(least_bytes)}."
        return
    if best.checkpointed:
        yield f"Wrap in torch.utils.checkpoint: {', '.join(best.checkpointed)}."
    if best.allocator == POOL:
        yield "Run the job with `vramcast follow FILE -- COMMAND`, where FILE is the plan that -o FILE writes."


def _cost(mix: Mix) -> str:
    longer = f"{mix.longer_ms:.1f} ms longer per step" if mix.longer_ms or mix.swaps is not None else ""
    host = f"{gib(mix.host_bytes)} of pinned host memory" if mix.host_bytes else ""
    return ", ".join(filter(None, (longer, host)))
