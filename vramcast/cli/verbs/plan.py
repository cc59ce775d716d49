"""Plan a job's memory: place blocks in a pool by their lifetimes, and move them to the host while they are unused.

    vramcast plan --on t4 --pool -o plan.json -- python train.py
    vramcast plan torchvision:vgg16 --batch-size 64 --on t4 --swap --limit 4GiB
    vramcast plan history.pickle
    vramcast plan --on t4 --to 8GiB -- python train.py

Instead of a TARGET, give a memory history that `replay` accepts (also gzipped), a trace of vramcast (.npz), or, after all
options, a training command. Without --pool and --swap, both are planned where possible. With --to, the answer is the cheapest
mix of allocator options, a pool, swaps and recomputation that stays within a size.

Exit code 0: there is a plan; 1: the blocks do not fit within --limit or --to, or no hooks keep them there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vramcast.cli import options as shared
from vramcast.cli import values
from vramcast.cli.checked_job import COMMAND_HELP, estimate_of
from vramcast.cli.help_text import ADVANCED, ANSWER, group
from vramcast.cli.streams import answer_as, say
from vramcast.cli.terminal import progress
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.core.files import sha256_of
from vramcast.core.plain import from_plain, to_plain
from vramcast.core.units import gib, parse_bytes
from vramcast.estimates.planning.mixes import POOL, Mix, cheapest, mixes
from vramcast.estimates.planning.plans import HookedSwaps, has_reads, hook_swaps, plan_pool, plan_swap
from vramcast.hardware.cards import DEFAULT, device
from vramcast.hardware.device import Device
from vramcast.jobs.job import Job, Training
from vramcast.report import SCHEMA
from vramcast.runtime.plan_file import PlanFile, PlannedJob, PlannedPool, RankPlan
from vramcast.simulator.planning.free_options import FreeOptions, free_options
from vramcast.simulator.planning.lifetimes import Lifetimes
from vramcast.simulator.planning.pool import PoolPlan
from vramcast.simulator.planning.swap import SwapPlan
from vramcast.simulator.planning.swap_schedule import LINKS
from vramcast.simulator.replay import recorded_settings
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.snapshot import read_trace
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.protocol.run_options import RunOptions
from vramcast.views import placement

if TYPE_CHECKING:
    from vramcast.estimates.estimator import Estimator
    from vramcast.jobs.text import JobText

_STEPS = 6  # arbitrary: four show that steps repeat (`repetition.find`), and the first two may differ


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_job(parser, is_optional=True)
    shared.add_course(parser)
    shared.add_fields(parser, *shared.RANKS)
    shared.add_output(parser)
    answers, advanced = group(parser, ANSWER), group(parser, ADVANCED)
    advanced.add_argument(
        "--device-index",
        type=values.count(0),
        metavar="N",
        help="device of a history with several; default: the one with the most events",
    )
    answers.add_argument("--pool", action="store_true", help="plan a pool: an address for each block")
    answers.add_argument(
        "--swap",
        action="store_true",
        help="plan the blocks to move to the host; a job records when blocks are read, a history does not",
    )
    answers.add_argument(
        "--limit",
        metavar="SIZE",
        type=values.checked(parse_bytes),
        help="most bytes of blocks on the card, with swapping; default: the lowest peak without overhead",
    )
    answers.add_argument(
        "--to",
        metavar="SIZE",
        type=values.checked(parse_bytes),
        help="find the cheapest way to reserve at most that much: allocator options, pool, swaps, recomputation",
    )
    answers.add_argument("--link", choices=tuple(LINKS), help="link between card and host (default: pcie4)")
    answers.add_argument("-o", "--out", metavar="FILE.json", help="write the plan, for `vramcast follow`")
    answers.add_argument(
        "--chart",
        metavar="FILE",
        type=shared.drawn_path(placement.ENDINGS),
        help="draw the place and the lifetime of each block: .png or .html",
    )
    parser.set_defaults(steps=None)
    parser.epilog = f"Instead of TARGET, after all options: -- COMMAND: {COMMAND_HELP}"


@dataclass(frozen=True, slots=True)
class _Source:
    """The input of a plan: a trace with addresses, the bytes that the caching allocator reserves for it, and its job."""

    trace: Trace
    caching_bytes: int
    title: str
    has_reads: bool
    card: Device | None = None
    job: PlannedJob = field(default_factory=PlannedJob)
    rank: int = 0
    retrace: Callable[[RunOptions], Trace] | None = None
    settings: Settings = field(default_factory=Settings)


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    for name in ("limit", "link"):
        if getattr(options, name) and options.pool and not options.swap:
            raise UsageError(f"--{name} applies to swapping: add --swap, or leave out --pool.")
    if bool(options.target) == bool(options.command):
        raise UsageError("Give a TARGET or a file, or a training command after --: one of them, and not both.")
    if options.to and (options.pool or options.swap or options.limit):
        raise UsageError("--to chooses among pool, swaps and more itself: leave out --pool, --swap and --limit.")
    must_swap = bool(options.swap or options.limit or options.link or options.to)
    source, *others = _sources(options, RunOptions(accesses=must_swap or not options.pool, swaps=() if must_swap else None))
    if must_swap and not source.has_reads:
        raise UsageError(
            f"'{source.title}' does not record when blocks are read, which swapping needs: give the job as a TARGET on "
            "the null GPU (--tracer nullgpu), or plan only its pool (--pool)."
        )
    lifetimes = Lifetimes.of(source.trace)
    if not len(lifetimes):
        raise UsageError(
            f"'{source.title}' has no allocation to plan: give a job with inputs, or record a history with "
            "torch.cuda.memory._record_memory_history()."
        )
    if options.to:
        return _to(options, source, lifetimes)
    placed = moved = hooked = None
    if options.pool or not options.swap:
        with progress(f"placing {len(lifetimes):,} blocks"):
            placed = plan_pool(source.trace)
    if must_swap or (source.has_reads and not options.pool):
        try:
            with progress("planning the swaps"):
                moved = plan_swap(source.trace, limit_bytes=options.limit, link=options.link or "pcie4")
        except UsageError as error:
            if must_swap:
                raise
            say(f"vramcast: no swap plan: {error}")
    if must_swap and source.retrace is not None and moved is not None and moved.feasible:
        hooked = _hooked(options, source, source.retrace)
    if options.out:
        plans = [_rank_plan(source, placed, moved, hooked)]
        plans += [_rank_plan(other, placed and plan_pool(other.trace), None, None) for other in others]
        PlanFile(source.title, source.job, tuple(plans)).write(options.out)
    if options.chart:
        _draw(options.chart, source, lifetimes, placed)
    free = free_options(source.trace, source.settings)
    said = _json(source, lifetimes, placed, moved, hooked) | {"free_options": to_plain(free), "to": None}
    answer_as(options.json, said, lambda: _text(source, free, placed, moved, hooked, lifetimes.peak_live()[0]))
    if source.card is not None and options.device is None:
        say(f"vramcast: no card is named, so the plan is for {source.card.name}: --on CARD changes workspaces and times.")
    if options.limit and source.retrace is not None and hooked is None:
        return 1
    return 0 if moved is None or moved.feasible else 1


def _to(options: argparse.Namespace, source: _Source, lifetimes: Lifetimes) -> int:
    """Find the cheapest mix, print it, and write its plan."""
    if source.retrace is None:
        raise UsageError(
            f"'{source.title}' is a recording, which cannot be traced in other ways: give --to a TARGET or a command."
        )
    with progress("tracing other ways"):
        found = mixes(source.trace, source.retrace, options.to, settings=source.settings, link=options.link or "pcie4")
    best = cheapest(found, options.to)
    if options.out and best is not None:
        placed = plan_pool(best.trace) if best.allocator == POOL else None
        plan = _rank_plan(replace(source, trace=best.trace), placed, None, best.swaps)
        PlanFile(source.title, source.job, (plan,)).write(options.out)
    free = free_options(source.trace, source.settings)
    said = _json(source, lifetimes, None, None, None) | {"free_options": to_plain(free)}
    at = None if best is None else found.index(best)
    said["to"] = {"bytes": options.to, "mixes": [_mix_json(mix) for mix in found], "cheapest": at}
    answer_as(options.json, said, lambda: _mixes_text(found, best, options.to))
    return 0 if best is not None else 1


def _mix_json(mix: Mix) -> dict[str, Any]:
    moved_bytes = mix.swaps.moved_bytes if mix.swaps is not None else 0
    names = ("allocator", "reserved_bytes", "checkpointed", "longer_ms", "host_bytes")
    return {name: to_plain(getattr(mix, name)) for name in names} | {"moved_bytes": moved_bytes}


def _mixes_text(found: list[Mix], best: Mix | None, to_bytes: int) -> str:
    lines = []
    for mix in found:
        longer = f"{mix.longer_ms:.1f} ms longer per step" if mix.longer_ms or mix.swaps is not None else ""
        host = f"{gib(mix.host_bytes)} of pinned host memory" if mix.host_bytes else ""
        words = ", ".join(filter(None, (longer, host)))
        lines.append(f"{'>' if mix is best else ' '} {mix!s:<44}{gib(mix.reserved_bytes):>12}   {words}".rstrip())
    if best is None:
        least = min(found, key=lambda mix: mix.reserved_bytes)
        return "\n".join([*lines, f"No way stays within {gib(to_bytes)}: the least is {gib(least.reserved_bytes)}."])
    if best.checkpointed:
        lines.append(f"Wrap in torch.utils.checkpoint: {', '.join(best.checkpointed)}.")
    if best.allocator == POOL:
        lines.append("Write the plan with -o plan.json, and run the job with `vramcast follow plan.json -- COMMAND`.")
    return "\n".join(lines)


def _hooked(options: argparse.Namespace, source: _Source, retrace: Callable[[RunOptions], Trace]) -> HookedSwaps | None:
    """Return the swaps that hooks can make, from a trace of the job with its hooks; None, and a line, if there are none."""
    try:
        with progress("tracing with hooks"):
            return hook_swaps(source.trace, retrace, limit_bytes=options.limit, link=options.link or "pcie4")
    except CannotEstimate as error:
        missed = f" within {gib(options.limit)}, although the full schedule stays there" if options.limit else ""
        say(f"vramcast: no hooks for the swaps{missed}: {error}")
        return None


# ------------------------------------------------------------------------------------------------ input
def _sources(options: argparse.Namespace, how: RunOptions) -> list[_Source]:
    """Return the trace of the TARGET or of each rank of the command, or the trace in the file, that the command line names."""
    if options.target and (Path(options.target).is_file() or ":" not in options.target):
        return [_recorded(options)]
    options.steps = options.steps or (_STEPS if options.command else Training().steps)
    options.command = options.command or None
    text, estimator = shared.text_of(vars(options)), shared.estimator_of(vars(options))
    job = text.job(device(options.device or DEFAULT))
    if job.command is None:
        with progress(f"tracing {options.target}"):
            found = estimator.estimate_job(job, how)
        title = f"{options.target} on {job.device.name}"
        return [
            _Source(
                found.trace, found.reserved, title, has_reads(found.trace), job.device,
                settings=Settings.parse(found.alloc_conf.value),
                retrace=lambda how: estimator.estimate_job(job, how).trace,
            )
        ]  # fmt: skip
    ranks = job.command.world.chosen("all" if job.command.ranks == "auto" else job.command.ranks)
    if how.swaps is not None and len(ranks) > 1:
        raise UsageError(
            f"Swaps are planned for one process, and '{' '.join(job.command.words)}' has {len(ranks)} ranks: plan only the "
            "pools (--pool)."
        )
    return [_of_rank(estimator, text, replace(job, command=replace(job.command, ranks=(rank,))), rank, how) for rank in ranks]


def _of_rank(estimator: Estimator, text: JobText, job: Job, rank: int, how: RunOptions) -> _Source:
    """Return the trace of one rank of a command."""
    assert job.command is not None
    found = estimate_of(estimator, text, job, how)
    is_script = not (job.command.is_module or job.command.is_code)
    script = Path(job.working_folder, job.command.program)
    planned = PlannedJob(
        script.name if is_script else None, (sha256_of(script) or None) if is_script else None, found.torch, job.device.name,
        job.command.world.size,
    )  # fmt: skip
    title = f"{' '.join(job.command.words)} on {job.device.name}"
    return _Source(
        found.trace,
        found.reserved,
        title,
        has_reads(found.trace),
        job.device,
        planned,
        rank,
        lambda how: estimate_of(estimator, text, job, how).trace,
    )


def _recorded(options: argparse.Namespace) -> _Source:
    """Return the history in a file as if it started on an empty allocator: older blocks come first."""
    if not Path(options.target).exists():
        raise UsageError(
            f"'{options.target}' is neither a file nor a TARGET: give torchvision:resnet50, timm:NAME, hf:ORG/NAME, "
            "file.py:factory, a memory history (.pickle) or a trace (.npz)."
        )
    trace = read_trace(options.target, options.device_index)
    settings = Settings.parse(options.alloc_conf) if options.alloc_conf else recorded_settings(trace)
    if has_reads(trace):  # one of our own traces, which starts on an empty card: used as it is
        return _Source(trace, int(trace.reserved_bytes().max()), Path(options.target).name, True, settings=settings)
    found = simulate(trace, settings)
    return _Source(found.replayed(), found.reserved, Path(options.target).name, False, settings=settings)


# ------------------------------------------------------------------------------------------------ output
def _json(
    source: _Source, lifetimes: Lifetimes, placed: PoolPlan | None, moved: SwapPlan | None, hooked: HookedSwaps | None
) -> dict[str, Any]:
    """Return the documented JSON; a plan that was not made is None."""
    peak_bytes, _ = lifetimes.peak_live()

    def ratio(size_bytes: int) -> float | None:
        return size_bytes / peak_bytes if peak_bytes else None

    return {
        "schema": SCHEMA,
        "device": source.card and source.card.key,
        "peak_live": peak_bytes,
        "pool": None
        if placed is None
        else {
            "bytes": placed.height_bytes,
            "ratio": ratio(placed.height_bytes),
            "algorithm": placed.algorithm,
            "seconds": placed.seconds,
        },
        "caching": {"bytes": source.caching_bytes, "ratio": ratio(source.caching_bytes)},
        "swap": None if moved is None else {key: moved.to_json()[key] for key in _SWAP_KEYS} | {"hooks": _hooks_json(hooked)},
    }


def _hooks_json(hooked: HookedSwaps | None) -> dict[str, Any] | None:
    if hooked is None:
        return None
    names = ("peak_bytes", "moved_bytes", "host_bytes", "overhead_ms", "kept_bytes", "rounds")
    return {name: to_plain(getattr(hooked, name)) for name in names}


_SWAP_KEYS = ("limit", "feasible", "moved_bytes", "overhead_ms", "schedule")


def _text(
    source: _Source,
    free: FreeOptions,
    placed: PoolPlan | None,
    moved: SwapPlan | None,
    hooked: HookedSwaps | None,
    peak_bytes: int,
) -> str:
    def line(name: str, size_bytes: int, words: str) -> str:
        return f"{name:<18}{gib(size_bytes):>12}   {words}"

    lines = [
        line("peak of live", peak_bytes, "minimum of a perfect pool"),
        line("caching allocator", source.caching_bytes, f"{source.caching_bytes / peak_bytes:.4f} times that"),
        line("  expandable", free.expandable_bytes, "expandable_segments:True; needs no plan"),
        line("  one block first", free.one_block_bytes, f"{gib(free.first_bytes)} freed before the job; needs no plan"),
    ]
    if placed is not None:
        saved = 1 - placed.height_bytes / source.caching_bytes
        words = f"{placed.height_bytes / peak_bytes:.4f} times that, {saved:.1%} below the caching allocator, checked"
        best = 1 - placed.height_bytes / min(source.caching_bytes, free.least_bytes)
        lines.append(line("pool", placed.height_bytes, words))
        lines.append(f"{'':<33}{best:.1%} below the best of the three; {placed.algorithm}; {placed.seconds:.1f} s")
    if moved is not None and moved.overhead_ms is not None:
        share = moved.overhead_ms / moved.step_ms if moved.step_ms else 0.0
        lower = 1 - moved.peak_bytes / moved.peak_live_bytes
        lines += [
            line("swapping", moved.peak_bytes, f"{lower:.1%} below the live peak of step {moved.step}, checked"),
            f"{'':<33}{gib(moved.moved_bytes)} out and in per step over {moved.link.name}, {len(moved.schedule)} blocks",
            f"{'':<33}{moved.overhead_ms:.1f} ms longer per step, {share:.1%} of {moved.step_ms:.1f} ms ({moved.time_source})",
        ]
    elif moved is not None and moved.limit_bytes is not None:
        words = f"the lowest peak with swapping: above the limit of {gib(moved.limit_bytes)}"
        lines.append(line("swapping", moved.peak_bytes, words))
    if hooked is not None:
        words = f"{1 - hooked.peak_bytes / peak_bytes:.1%} below the peak of live, as traced with its hooks on saved tensors"
        lines += [
            line("swapping, by hooks", hooked.peak_bytes, words),
            f"{'':<33}{gib(hooked.moved_bytes)} out and in per step, {gib(hooked.host_bytes)} of pinned host memory",
            f"{'':<33}{hooked.overhead_ms:.1f} ms longer per step, by the same times",
        ]
        if hooked.kept_bytes:
            lines.append(f"{'':<33}{gib(hooked.kept_bytes)} stay: the job holds them itself, as it does its logits")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ files
def _rank_plan(source: _Source, placed: PoolPlan | None, moved: SwapPlan | None, hooked: HookedSwaps | None) -> RankPlan:
    """Return the part of the plan file for one rank; with hooks, its pool is that of the job with its hooks.

    docs/planning.md describes each key.
    """
    if hooked is not None:
        source, placed = replace(source, trace=hooked.trace), placed and plan_pool(hooked.trace)
    blocks = Lifetimes.of(source.trace)
    columns = {
        "row": blocks.row,
        "requested_bytes": source.trace.size_bytes[blocks.row],
        "birth": blocks.birth,
        "death": blocks.death,
    }
    return RankPlan(
        source.rank,
        blocks.length,
        {name: tuple(column.tolist()) for name, column in columns.items()},
        None if placed is None else from_plain(PlannedPool, placed.to_dict(), "the pool"),
        None
        if moved is None and hooked is None
        else (to_plain(moved.to_json()) if moved else {}) | {"hooks": _hooks_json(hooked)},
    )


def _draw(path: str, source: _Source, lifetimes: Lifetimes, placed: PoolPlan | None) -> None:
    """Draw the blocks at their addresses in the caching allocator and in the pool."""
    packings = [placement.by_address(source.trace)]
    if placed is not None:
        nothing = np.empty((0, 4), np.int64)
        packings.append(placement.Packing("pool", placed.offset_bytes, placed.height_bytes, nothing))
    placement.save(source.trace, packings, path, title=source.title)
