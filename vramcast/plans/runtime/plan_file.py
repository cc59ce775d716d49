"""The plan file of a job: `vramcast plan --out` writes it, and the job that follows the plan reads it.

One JSON object has the job that was traced (`PlannedJob`) and a plan for each rank (`RankPlan`): a pool, a swap schedule, or
both. The file may come from others, so each value is checked when it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from vramcast.core.errors import TraceFileError, UsageError
from vramcast.core.files import atomic_write
from vramcast.core.plain import Between, from_plain, json_value, to_plain
from vramcast.core.units import INT64_MOST

FORMAT: Final = "vramcast-plan"
VERSION: Final = 2  # 1 had the plan of a single rank and no job, and nothing followed it
_ALIGNMENT: Final = 512  # spec: alignment of PyTorch's CUDA blocks, in bytes
_AGAIN: Final = "make the plan again with `vramcast plan`"

_Bytes = Annotated[int, Between(0, INT64_MOST)]


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """The facts of the traced job that a followed job must share; None: not known, so not compared.

    Attributes:
        script: Name of the script, for people.
        script_sha256: SHA-256 of the script's file, in hexadecimal digits.
        torch: `torch.__version__`.
        card: The card's name in torch.
        world_size: Number of ranks.
    """

    script: str | None = None
    script_sha256: str | None = None
    torch: str | None = None
    card: str | None = None
    world_size: int | None = None

    def require(self, here: PlannedJob) -> None:
        """Raise if the plan is for another job than the one `here`, as far as both are known.

        Raises:
            UsageError: A fact differs; the message names it.
        """
        for name, words in _FACTS.items():
            planned, found = getattr(self, name), getattr(here, name)
            if None in (planned, found) or planned == found:
                continue
            if name == "script_sha256":
                planned, found = f"{self.script} as it was", f"{here.script} as it is now"
            raise UsageError(
                f"The plan is for another job, {words} differs: {planned} in the plan, {found} here. Make a plan for this job: "
                "vramcast plan --pool -o plan.json -- COMMAND."
            )


_FACTS: Final = {
    "script_sha256": "the script",
    "torch": "the release of torch",
    "card": "the card",
    "world_size": "the number of ranks",
}


@dataclass(frozen=True, slots=True)
class PlannedPeriod:
    """Continuation of a pool when the job outlasts its trace; see `vramcast.plans.pool.Period`."""

    first_block: _Bytes
    n_blocks: Annotated[int, Between(1, INT64_MOST)]
    end_block: _Bytes
    unplanned: tuple[_Bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedPool:
    """A place for each request, in the job's order; see `vramcast.plans.pool.PoolPlan.to_dict`."""

    height_bytes: _Bytes
    size_bytes: tuple[_Bytes, ...]
    offset_bytes: tuple[_Bytes, ...]
    period: PlannedPeriod | None = None
    alignment_bytes: Literal[512] = 512
    format: str = ""
    version: int = 1
    algorithm: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The plan of one rank.

    Attributes:
        rank: Its number.
        rows: Rows of the trace: the time unit of `blocks`.
        blocks: Columns with one entry per request: `row`, `requested_bytes`, `birth`, `death`.
        pool: Places of the blocks; None: not planned.
        swap: Copies to the host; None: none are planned.
    """

    rank: int
    rows: int
    blocks: Mapping[str, tuple[_Bytes, ...]]
    pool: PlannedPool | None = None
    swap: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The content of a plan file.

    Attributes:
        of: The job or the file that was planned, for people.
        job: What must be the same when the plan is followed.
        ranks: The plans, in order of rank.
    """

    of: str
    job: PlannedJob
    ranks: tuple[RankPlan, ...]
    format: Literal["vramcast-plan"] = FORMAT
    version: Literal[2] = VERSION

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically.

        Raises:
            OutputError: It cannot be written.
        """
        with atomic_write(path) as file:
            file.write(json.dumps(to_plain(self), separators=(",", ":")).encode())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PlanFile:
        """Return the content of a file, with each value checked.

        Raises:
            TraceFileError: There is no such file, it is damaged, or another version of vramcast wrote it.
        """
        what = f"The plan '{path}'"
        try:
            data = json_value(Path(path).read_bytes(), what, raises=TraceFileError)
        except OSError as error:
            raise TraceFileError(f"{what} cannot be read ({error.strerror}): {_AGAIN}.") from None
        found = data if isinstance(data, dict) else {}
        if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
            raise TraceFileError(f"{what} is not a '{FORMAT}' of version {VERSION}: {_AGAIN}.")
        plan = from_plain(cls, data, what, raises=TraceFileError)
        for one in plan.ranks:
            if one.pool is not None and (fault := _fault(one.pool)):
                raise TraceFileError(f"{what} is damaged, {fault} (rank {one.rank}): {_AGAIN}.")
        return plan

    def of_rank(self, rank: int) -> RankPlan:
        """Return the plan of a rank.

        Raises:
            TraceFileError: The file has none.
        """
        for one in self.ranks:
            if one.rank == rank:
                return one
        known = ", ".join(str(one.rank) for one in self.ranks)
        raise TraceFileError(f"The plan of {self.of} has no rank {rank}, only {known}: {_AGAIN} for all ranks.")


def _fault(pool: PlannedPool) -> str:
    """Return what is wrong with a pool, "" if nothing is; whether blocks overlap is for the follower to watch."""
    if len(pool.size_bytes) != len(pool.offset_bytes):
        return "it has not one offset and one size per block"
    for size, offset in zip(pool.size_bytes, pool.offset_bytes, strict=True):
        if offset % _ALIGNMENT or size % _ALIGNMENT or offset + size > pool.height_bytes:
            return f"a block of {size} bytes at {offset} is unaligned or outside the pool of {pool.height_bytes} bytes"
    period, n = pool.period, len(pool.size_bytes)
    if period and not (period.first_block + period.n_blocks <= period.end_block <= n):
        return f"its period is outside its {n} blocks"
    if period and max(period.unplanned, default=0) >= period.n_blocks:
        return "an unplanned block is outside its period"
    return ""
