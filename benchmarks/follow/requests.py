"""Seeded deviations from a plan, judged by a checker that shares no code with the follower.

The judge keeps the live blocks by address. A block that another stream used lives until an event of the judge's own on that
stream is over. Each block's memory is asked for through torch, and must lie in memory that the judge thinks free.
"""

from __future__ import annotations

import bisect
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from vramcast.plans.runtime.plan_file import PlanFile

RATES: Final = (0.0, 0.001, 0.01, 0.05, 0.2, 0.6)
KINDS: Final = (
    "resize", "extra", "twin", "drop", "late", "early", "side", "record", "fail", "jump", "empty", "pool",
)  # fmt: skip


@dataclass
class Judge:
    """The live blocks, by address."""

    starts: list[int] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    overlaps: int = 0
    n_born: int = 0

    def born(self, low: int, size: int) -> None:
        """Note a new block; what it overlaps is counted."""
        high = low + -(-size // 512) * 512
        at = bisect.bisect_right(self.starts, low)
        self.n_born += 1
        before = at > 0 and self.ends[self.starts[at - 1]] > low
        behind = at < len(self.starts) and self.starts[at] < high
        self.overlaps += before or behind
        if at == 0 or self.starts[at - 1] != low:
            self.starts.insert(at, low)
        self.ends[low] = high

    def dead(self, low: int) -> None:
        """Note the end of a block."""
        if low in self.ends:
            del self.starts[bisect.bisect_left(self.starts, low)], self.ends[low]


class Deviating:
    """The requests of a plan, some of them replaced, left out, moved, or on other streams; each seed is another job."""

    def __init__(self, plan: PlanFile, seed: int, *, is_slow: bool) -> None:
        import torch

        from vramcast.plans.runtime.follower import Follower

        self.torch, self.is_slow, self.random = torch, is_slow, random.Random(seed)
        one = plan.of_rank(0)
        assert one.pool is not None
        self.sizes = one.pool.size_bytes
        self.follower = Follower(one)
        births = [(row, 1, k) for k, row in enumerate(one.blocks["birth"])]
        self.rows = sorted(births + [(row, 0, k) for k, row in enumerate(one.blocks["death"]) if row < one.rows])
        self.rate = self.random.choice(RATES)
        self.kinds = self.random.sample(KINDS, self.random.randint(1, len(KINDS)))
        self.judge = Judge()
        self.live: dict[int, tuple[Any, set[Any], Any]] = {}
        self.late: list[tuple[int, int]] = []
        self.waiting: list[tuple[int, list[Any]]] = []
        self.sides = [torch.cuda.Stream() for _ in range(2)]
        self.pool = torch.cuda.MemPool()
        self.lost = 0

    def ask(self, key: int, size: int, stream: Any = None, *, in_pool: bool = False) -> None:
        """Request a block under a key, and free the earlier block of the key."""
        torch = self.torch
        with torch.cuda.stream(stream):
            if in_pool:
                with torch.cuda.use_mem_pool(self.pool):
                    block = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
            else:
                block = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
        self.lost += block.data_ptr() == 0
        self.settle()
        self.judge.born(block.data_ptr(), max(size, 1))
        self.free(key)
        self.live[key] = (block, set(), stream)

    def free(self, key: int) -> None:
        """Free a block."""
        if key not in self.live:
            return
        block, streams, _ = self.live.pop(key)
        if streams and self.is_slow:
            self.waiting.append((block.data_ptr(), [side.record_event() for side in streams]))
        else:
            self.judge.dead(block.data_ptr())

    def settle(self) -> None:
        """Note the end of blocks that no other stream uses any more."""
        for entry in [one for one in self.waiting if all(event.query() for event in one[1])]:
            self.judge.dead(entry[0])
            self.waiting.remove(entry)

    def run(self, n_operations: int) -> Counter[str]:
        """Run this many operations, free everything, and return what was found."""
        at, number = 0, len(self.sizes)
        for made in range(n_operations):
            if at == len(self.rows):
                break
            _, is_birth, k = self.rows[at]
            at += 1
            kind = self.random.choice(self.kinds) if self.random.random() < self.rate else ""
            size = self.sizes[k]
            if is_birth and kind in ("extra", "twin"):
                number += 1
                self.ask(number, self.random.choice(self.sizes) if kind == "twin" else 1 << self.random.randint(8, 26))
                self.late.append((made + self.random.randint(1, 400), number))
            if is_birth and kind != "drop":
                size = int(size * self.random.uniform(0.3, 3)) if kind == "resize" else size
                self.ask(
                    k, min(size, 1 << 30), self.random.choice(self.sides) if kind == "side" else None, in_pool=kind == "pool"
                )
            elif not is_birth and kind == "late":
                self.late.append((made + self.random.randint(1, 600), k))
            elif not is_birth:
                if kind == "record" and k in self.live and self.live[k][2] is None:
                    side = self.random.choice(self.sides)
                    side.wait_stream(self.torch.cuda.current_stream())
                    self.live[k][0].record_stream(side)
                    self.live[k][1].add(side)
                self.free(k)
            if kind == "early" and self.live:
                self.free(self.random.choice(list(self.live)))
            if kind == "fail" and self.random.random() < 0.1:
                for key in [one for one in self.live if self.random.random() < 0.9]:
                    self.free(key)
            if kind == "jump" and self.random.random() < 0.1:
                at = self.random.randrange(len(self.rows))
            if kind == "empty" and self.random.random() < 0.1:
                self.torch.cuda.empty_cache()
            if self.random.random() < 0.003:
                self.torch.cuda.synchronize()
            while self.late and min(self.late)[0] <= made:
                self.late.remove(first := min(self.late))
                self.free(first[1])
        return self._end()

    def _end(self) -> Counter[str]:
        counts = self.follower.counts()
        for key in list(self.live):
            self.free(key)
        self.torch.cuda.synchronize()
        self.settle()
        stats = self.torch.cuda.memory_stats()
        return Counter(
            {
                "blocks": self.judge.n_born, "overlaps": self.judge.overlaps, "planned": counts.planned, "holes": counts.holes,
                "strays": counts.strays, "resyncs": counts.resyncs,
                "requests lost": self.lost + self.judge.n_born - counts.planned - counts.holes - counts.strays,
                "left over": stats["allocated_bytes.all.current"] + len(self.waiting),
            }
        )  # fmt: skip


def run_job(asked: tuple[str, int, bool, str]) -> Counter[str]:
    """Run one seed in this process, the null GPU's: the plan, the seed, whether side streams are slow, other sources."""
    import os
    from pathlib import Path

    from vramcast.plans.runtime import library

    path, seed, is_slow, source = asked
    if is_slow:
        os.environ["NULLGPU_DEVICE"] += ";is_slow=1"
    if source:
        vars(library)["_SOURCE"] = Path(source)
    return Deviating(PlanFile.read(path), seed, is_slow=is_slow).run(20_000)
