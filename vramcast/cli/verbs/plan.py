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
from vramcast.hardware.device import Device
from vramcast.jobs.job import Job, Training
from vramcast.plans.free_options import FreeOptions, free_options
from vramcast.plans.lifetimes import Lifetimes
from vramcast.plans.mixes import MixChoice, mixes
from vramcast.plans.planner import HookedSwaps, has_reads, hook_swaps, plan_pool, plan_swap
from vramcast.plans.pool import PoolPlan
from vramcast.plans.runtime.plan_file import PlanFile, PlannedJob, PlannedPool, RankPlan
from vramcast.plans.swap import SwapPlan
from vramcast.plans.swap_schedule import LINKS
from vramcast.report.plan_answer import PlanAnswer
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
    answer = PlanAnswer(
        None if source.card is None else source.card.key, lifetimes.peak_live()[0], source.caching_bytes,
        free_options(source.trace, source.settings),
    )  # fmt: skip
    if options.to:
        answer = replace(answer, choice=_choice(options, source, answer.free))
    else:
        answer = _planned(options, source, answer, must_swap=must_swap)
    if options.out and (plans := _rank_plans(source, others, answer)):
        PlanFile(source.title, source.job, plans).write(options.out)
    if options.chart:
        _draw(options.chart, source, answer.pool)
    answer_as(options.json, answer.to_dict(), answer.text)
    if source.card is not None and options.device is None:
        say(f"vramcast: no card is named, so the plan is for {source.card.name}: --on CARD changes workspaces and times.")
    return 0 if _is_planned(options, source, answer) else 1


def _planned(options: argparse.Namespace, source: _Source, answer: PlanAnswer, *, must_swap: bool) -> PlanAnswer:
    """Return the answer with the pool and the swaps that the options ask for."""
    if options.pool or not options.swap:
        with progress("placing the blocks"):
            answer = replace(answer, pool=plan_pool(source.trace))
    if must_swap or (source.has_reads and not options.pool):
        try:
            with progress("planning the swaps"):
                swap = plan_swap(source.trace, limit_bytes=options.limit, link=options.link or "pcie4")
        except UsageError as error:
            if must_swap:
                raise
            say(f"vramcast: no swap plan: {error}")
        else:
            has_hooks = must_swap and source.retrace is not None and swap.feasible
            answer = replace(answer, swap=swap, hooks=_hooked(options, source) if has_hooks else None)
    return answer


def _is_planned(options: argparse.Namespace, source: _Source, answer: PlanAnswer) -> bool:
    """Return whether the blocks stay within the limit of the options."""
    if answer.choice is not None:
        return answer.choice.cheapest is not None
    is_hooked = answer.hooks is not None or not options.limit or source.retrace is None
    return is_hooked and (answer.swap is None or answer.swap.feasible)


def _choice(options: argparse.Namespace, source: _Source, free: FreeOptions) -> MixChoice:
    if source.retrace is None:
        raise UsageError(
            f"'{source.title}' is a recording, which cannot be traced in other ways: give --to a TARGET or a command."
        )
    with progress("tracing other ways"):
        link = options.link or "pcie4"
        return mixes(source.trace, source.retrace, options.to, free, settings=source.settings, link=link)


def _hooked(options: argparse.Namespace, source: _Source) -> HookedSwaps | None:
    """Return the swaps that hooks can make, from a trace of the job with its hooks; None, and a line, if there are none."""
    assert source.retrace is not None
    try:
        with progress("tracing with hooks"):
            return hook_swaps(source.trace, source.retrace, limit_bytes=options.limit, link=options.link or "pcie4")
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
    job = text.job(estimator.named_card)
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


# ------------------------------------------------------------------------------------------------ files
def _rank_plans(source: _Source, others: list[_Source], answer: PlanAnswer) -> tuple[RankPlan, ...]:
    """Return the plan file's part of each rank; none if no way stays within a size.

    With hooks, the pool is that of the job with its hooks. docs/planning.md describes each key.
    """
    if answer.choice is not None:
        best = answer.choice.cheapest
        return () if best is None else (_rank_plan(source.rank, best.trace, best.pool, _swap_part(None, best.swaps)),)
    trace, pool, hooks = source.trace, answer.pool, answer.hooks
    if hooks is not None:
        trace, pool = hooks.trace, pool and plan_pool(hooks.trace)
    first = _rank_plan(source.rank, trace, pool, _swap_part(answer.swap, hooks))
    return first, *(_rank_plan(other.rank, other.trace, pool and plan_pool(other.trace), None) for other in others)


def _swap_part(swap: SwapPlan | None, hooks: HookedSwaps | None) -> dict[str, Any] | None:
    if swap is None and hooks is None:
        return None
    return (to_plain(swap.to_dict()) if swap else {}) | {"hooks": hooks and hooks.to_dict()}


def _rank_plan(rank: int, trace: Trace, pool: PoolPlan | None, swap: dict[str, Any] | None) -> RankPlan:
    blocks = Lifetimes.of(trace)
    columns = {"row": blocks.row, "requested_bytes": trace.size_bytes[blocks.row], "birth": blocks.birth, "death": blocks.death}
    return RankPlan(
        rank,
        blocks.length,
        {name: tuple(column.tolist()) for name, column in columns.items()},
        None if pool is None else from_plain(PlannedPool, pool.to_dict(), "the pool"),
        swap,
    )


def _draw(path: str, source: _Source, pool: PoolPlan | None) -> None:
    """Draw the blocks at their addresses in the caching allocator and in the pool."""
    packings = [placement.by_address(source.trace)]
    if pool is not None:
        nothing = np.empty((0, 4), np.int64)
        packings.append(placement.Packing("pool", pool.offset_bytes, pool.height_bytes, nothing))
    placement.save(source.trace, packings, path, title=source.title)
