"""Jobs of a few requests that follow a plan; `run_job` runs one of them in the null GPU's process and returns what it saw."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from vramcast.core.errors import UsageError
from vramcast.plans.runtime.follower import Counts, Follower, follow
from vramcast.plans.runtime.plan_file import PlanFile, PlannedJob, PlannedPeriod, PlannedPool, RankPlan

MIB = 1 << 20


def plan(sizes: tuple[int, ...]) -> RankPlan:
    """Return a plan of blocks next to each other, which repeats and frees each before the last one."""
    places = tuple(sum(sizes[:k]) for k in range(len(sizes)))
    rows = tuple(range(len(sizes)))
    blocks = {"birth": rows, "death": tuple(row + 1 for row in rows), "row": rows, "requested_bytes": sizes}
    return RankPlan(0, 4 * len(sizes), blocks, PlannedPool(sum(sizes), sizes, places, PlannedPeriod(0, len(sizes), len(sizes))))


def _block(size: int) -> Any:
    import torch

    return torch.empty(size, dtype=torch.uint8, device="cuda")


def fill_card(_: str) -> list[Any]:
    """Fill a card of 600 MiB: a hole of the arena serves one request, and pages of the arena make room for another."""
    follower = Follower(plan((256 * MIB, 64 * MIB)))
    planned = [_block(256 * MIB), _block(64 * MIB)]
    others = [_block(100 * MIB), _block(100 * MIB)]
    del planned[0]
    others.append(_block(90 * MIB))
    in_hole = follower.counts()
    del planned, others[-1]
    whole = _block(380 * MIB)
    return [in_hole, follower.counts(), whole.data_ptr() != 0]


def capture(_: str) -> list[Counts]:
    """Capture a CUDA graph between two rounds of the plan."""
    import torch

    follower = Follower(plan((4 * MIB, 2 * MIB)))
    counts = []
    for is_captured in (False, True, False):
        with torch.cuda.graph(torch.cuda.CUDAGraph()) if is_captured else torch.cuda.stream(None):
            kept = [_block(4 * MIB), _block(2 * MIB)]
        counts.append(follower.counts())
        del kept
    return counts


def threads(_: str) -> tuple[int, Counts]:
    """Let four threads request blocks, each of which must lie apart from all that live; return how many did not."""
    import torch

    follower = Follower(plan(tuple(512 << k % 10 for k in range(200))))
    torch.cuda.init()
    owners: dict[int, int] = {}  # of each 512 bytes; a dictionary's setdefault and pop are atomic
    wrong: list[int] = []
    live: list[list[Any]] = [[] for _ in range(4)]  # until the last thread ends

    def ask(me: int) -> None:
        kept = live[me]
        for k in range(3000):
            size = 512 << (k * (me + 3)) % 10
            block = _block(size)
            pieces = range(block.data_ptr(), block.data_ptr() + size, 512)
            wrong.extend(piece for piece in pieces if owners.setdefault(piece, me * 10_000 + k) != me * 10_000 + k)
            kept.append((block, pieces))
            if len(kept) > 30:
                old, pieces = kept.pop(k % 30)
                for piece in pieces:
                    owners.pop(piece)
                del old, block

    workers = [threading.Thread(target=ask, args=(me,)) for me in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return len(wrong), follower.counts()


def another_card(folder: str) -> str:
    """Follow a plan that was made for another card, and return the refusal."""
    path = Path(folder) / "plan.json"
    PlanFile("a job", PlannedJob(card="Tesla T4"), (plan((512,)),)).write(path)
    try:
        follow(path)
    except UsageError as error:
        return str(error)
    return "not refused"


def run_job(asked: tuple[str, str]) -> Any:
    """Run a job by its name, with a folder for its files."""
    name, folder = asked
    return globals()[name](folder)
