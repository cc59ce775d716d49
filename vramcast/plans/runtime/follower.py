"""Follows a plan in the job's own process: checks that it is for this job, and says at the end how far it was followed."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from vramcast.core.errors import UsageError, VramcastError
from vramcast.core.files import sha256_of
from vramcast.core.units import MIB
from vramcast.plans.runtime import library
from vramcast.plans.runtime.plan_file import PlanFile, PlannedJob, RankPlan
from vramcast.plans.runtime.swapping import swapping


@dataclass(frozen=True, slots=True)
class Counts:
    """The requests of this process so far.

    Attributes:
        planned: Requests served at their planned places.
        holes: Requests served in holes of the arena.
        strays: Requests served by PyTorch's own allocator.
        resyncs: How often the job went on at another place of the plan than the next one.
        arena_bytes: Bytes that the arena holds; it gives pages back when the job needs memory elsewhere.
        is_over: Whether the arena did not fit on the card, so nothing is followed.
    """

    planned: int
    holes: int
    strays: int
    resyncs: int
    arena_bytes: int
    is_over: bool


class Follower:
    """The follower of this process."""

    def __init__(self, plan: RankPlan) -> None:
        """Follow a rank's plan from here on, without a check that it is for this job.

        Raises:
            UsageError: The plan has no pool.
            CompilerError: The follower cannot be compiled for this torch.
            OtherAllocator: Torch's allocator is not the native one.
        """
        if plan.pool is None:
            raise UsageError("The plan has no pool to follow: make it with `vramcast plan --pool -o plan.json`.")
        self.pool = plan.pool
        self.library: ctypes.CDLL = library.load()
        library.start(self.library, plan, plan.pool)

    def counts(self) -> Counts:
        """Return the counts so far."""
        values = np.zeros(library.N_COUNTS, np.int64)
        self.library.follow_counts(values)
        planned, holes, strays, resyncs, arena_bytes, is_over = values.tolist()
        return Counts(planned, holes, strays, resyncs, arena_bytes, bool(is_over))

    def summary(self) -> str:
        """Return one line about what was followed; "" if nothing was requested."""
        import torch

        found = self.counts()
        total = found.planned + found.holes + found.strays
        if not total:
            return f"the planned {self.pool.height_bytes / MIB:,.0f} MiB did not fit on the card" if found.is_over else ""
        device, planned = torch.cuda.max_memory_reserved() / MIB, self.pool.height_bytes / MIB
        return (
            f"{found.planned:,} of {total:,} requests from the plan, {found.holes + found.strays:,} strays "
            f"({found.holes:,} of them in the arena); the device's peak is {device:,.0f} MiB, the plan's {planned:,.0f} MiB"
        )


def follow(path: str | os.PathLike[str]) -> Follower:
    """Serve this process's CUDA memory from a plan, from its first request on.

    Call it before the job puts anything on the card. At the end of the process, one line on stderr says what was followed.

    Args:
        path: The file that `vramcast plan --pool -o plan.json -- python train.py` wrote.

    Returns:
        The follower, which counts requests.

    Raises:
        TraceFileError: The file is damaged, or has no plan for this rank.
        UsageError: The plan is for another script, torch, card or number of ranks; the message names the difference.
        CompilerError: The follower cannot be compiled for this torch.
        OtherAllocator: Torch's allocator is not the native one.

    Example:
        >>> import vramcast.runtime
        >>> vramcast.runtime.follow("plan.json")  # doctest: +SKIP
    """
    plan = PlanFile.read(path)
    plan.job.require(_this_job())
    return _followed(plan)


def follow_from_start(path: str) -> None:
    """Follow a plan in a process of `vramcast follow`, right after torch's import; the card is checked when CUDA starts.

    A refusal ends the process with its sentence and exit code.
    """
    from vramcast.tracer.hooks import torch_api

    def check_card() -> None:
        try:
            plan.job.require(_this_job())
        except UsageError as error:
            _end(error)

    try:
        plan, here = PlanFile.read(path), _this_job(has_card=False)
        if plan.job.script not in (None, here.script):
            return  # a launcher, or another program that the job starts
        plan.job.require(here)
        _followed(plan)
        torch_api.lazy_call(check_card)
    except VramcastError as error:
        _end(error)


def _followed(plan: PlanFile) -> Follower:
    rank = os.environ.get("RANK", "0")
    of_this = plan.of_rank(int(rank) if rank.isdecimal() else 0)
    follower = Follower(of_this)
    swapping(of_this).__enter__()  # until the process ends

    def say_summary() -> None:
        if text := follower.summary():
            of_rank = f" (rank {rank})" if "RANK" in os.environ else ""
            print(f"vramcast follow{of_rank}: {text}", file=sys.stderr)

    atexit.register(say_summary)
    return follower


def _this_job(*, has_card: bool = True) -> PlannedJob:
    import torch

    file = getattr(sys.modules.get("__main__"), "__file__", None)
    size = os.environ.get("WORLD_SIZE", "1")
    return PlannedJob(
        None if file is None else Path(file).name,
        None if file is None else sha256_of(file) or None,
        torch.__version__,
        torch.cuda.get_device_name() if has_card else None,
        int(size) if size.isdecimal() else None,
    )


def _end(error: VramcastError) -> NoReturn:
    print(f"vramcast: {error}", file=sys.stderr, flush=True)
    sys.exit(error.exit_code)
