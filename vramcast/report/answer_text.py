"""An estimate as text, for `print(estimate)` and the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from vramcast.core.units import gib
from vramcast.estimates.result import Estimate
from vramcast.tracer.format.rank_facts import Held, beside_bytes

_NUMBER: Final = re.compile(r"\d+")


def text(estimate: Estimate) -> str:
    """Return all lines of an answer."""
    return "\n".join([*_peaks(estimate), *_places(estimate), *_parts(estimate), *_limits(estimate)])


def _sized(name: str, size: str, words: str) -> str:
    return f"{name:<18}{size:>12}   {words}"


def _peaks(estimate: Estimate) -> Iterator[str]:
    """Yield the three peaks, the bound with its margin, and the verdict for the card."""
    context = estimate.context
    claim = f"at level {estimate.level:g}" + (", of the observed part" if estimate.doubts else "")
    smallest = "unknown" if estimate.min_feasible is None else gib(estimate.min_feasible)
    assumed = " (assumed)" if context.assumed else ""
    beside = beside_bytes(estimate.trace)
    others = f" + other processes {gib(beside)}" if beside else ""
    sums = f"reserved {gib(estimate.reserved)} + context {gib(context.bytes - beside)}{assumed}{others}"
    yield _sized("process peak", gib(estimate.process), sums)
    yield _sized("upper bound", gib(estimate.upper_bound), claim)
    for part in estimate.margin():
        yield _sized(f"  for {part.part}", gib(part.size_bytes), str(part))
    yield _sized("reserved", gib(estimate.reserved), "torch.cuda.max_memory_reserved()")
    yield _sized("allocated", gib(estimate.allocated), "torch.cuda.max_memory_allocated()")
    yield _sized("smallest card", smallest, "on which the job runs")
    yield _sized("card", gib(estimate.card_bytes), f"{estimate.job.device.name}: {estimate.verdict}")


def _places(estimate: Estimate) -> Iterator[str]:
    """Yield the breakdown of the bytes at the peak, and the peak's position."""
    if estimate.alloc_conf.value:
        yield f"allocator         {estimate.alloc_conf.value}   by the {estimate.alloc_conf.source}"
    parts = ", ".join(f"{name.replace('_', ' ')} {gib(size)}" for name, size in estimate.breakdown.items() if size)
    yield f"at the peak       {parts}"
    at = estimate.peak_at
    place = f"{at['module'] or 'outside of modules'}, {at['op'] or 'no operator'}"
    yield f"peak in           {_step(at['step'])}, {at['phase']}, {place}"


def _step(number: int | None) -> str:
    """Return a step's number, counted from 1 as in `--steps`."""
    return "no step" if number is None else "before step 1" if number < 0 else f"step {number + 1}"


def _parts(estimate: Estimate) -> Iterator[str]:
    """Yield the peaks of a command's phases and of a job's ranks."""
    for phase in estimate.course.phases:
        if phase.reached:
            yield _sized(phase.name, gib(phase.reserved or 0), f"reserved, {gib(phase.allocated or 0)} allocated")
    for one in estimate.ranks:
        name = f"rank {one.number} of {estimate.world_size}"
        yield _sized(name, gib(one.reserved), f"reserved, {gib(one.allocated)} allocated")
    for process in estimate.processes:
        with_others = "with the others" if process.is_at_once else "before or after these"
        yield _sized("a process", gib(process.reserved), f"reserved, {with_others}: {process.command}")
    if estimate.job.parallel is not None:
        yield f"batch             per rank; all {estimate.world_size} ranks make a step together"
    if estimate.sharding:
        yield from shard_table(estimate.sharding)
    for communicator in estimate.communicators:
        if communicator.calls:
            yield _sized("communicator", gib(communicator.bytes_assumed), f"assumed, {communicator}")


def _limits(estimate: Estimate) -> Iterator[str]:
    """Yield the limits of the numbers, and the warnings."""
    if (slow := estimate.slow_card_peaks) is not None:
        why = "blocks shared by streams are freed as late as possible"
        yield _sized("on a slow card", gib(slow.reserved), f"reserved, {gib(slow.allocated)} allocated: {why}")
    if (growth := estimate.growth) is not None:
        yield f"growth            {growth}"
    if estimate.course.not_reached:
        yield f"not reached       {'; '.join(estimate.course.not_reached)}"
    for warning in estimate.warnings:
        yield f"warning: {warning}"


def shard_table(rows: Sequence[Held]) -> Iterator[str]:
    """Yield the shards of each module's parameters on a rank; adjacent equal modules share a line, `layers.0 to 31`."""
    yield f"{'parameters of':<34} {'full':>12} {'shard here':>12} {'replicated':>12}"
    for _, group in groupby(rows, key=lambda one: (_NUMBER.sub("", one.module), one.full, one.sharded, one.replicated)):
        same = list(group)
        name = same[0].module + (f" to {same[-1].module.rpartition('.')[2]}, each" if len(same) > 1 else "")
        yield _shards(name, same[:1])
    yield _shards("all", rows)


def _shards(name: str, rows: Sequence[Held]) -> str:
    sizes = (sum(getattr(one, part) for one in rows) for part in ("full", "sharded", "replicated"))
    return " ".join([f"{name:<34}", *(f"{gib(size):>12}" for size in sizes)])
