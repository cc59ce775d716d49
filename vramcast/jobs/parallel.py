"""The spread of a model over ranks as plain data: `ddp`, `fsdp`, `hsdp:RxS`. `tracer/ranks/spread.py` applies it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from vramcast.core.checks import whole
from vramcast.core.errors import UsageError
from vramcast.core.text import shown
from vramcast.jobs.ranks import World

Kind = Literal["ddp", "fsdp", "hsdp"]
KINDS: Final = ("ddp", "fsdp", "hsdp:RxS")  # as users write them
_HSDP: Final = re.compile(r"hsdp:([0-9]{1,9})x([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Parallel:
    """A model on all ranks of a world; each rank has its own batch. A wrong value raises a UsageError.

    Attributes:
        kind: ddp (`DistributedDataParallel`), fsdp (FSDP2: `fully_shard` of each block, and of the model), or hsdp (fsdp
            within groups of ranks that are replicas of each other).
        world: The ranks.
        replicas: Number of groups for hsdp.
    """

    kind: Kind
    world: World
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UsageError(f"parallel (--parallel) is {shown(self.kind)}: use one of {', '.join(KINDS)}.")
        if self.world.size % self.replicas:
            raise UsageError(
                f"{self.world.size} ranks do not divide into {self.replicas} replicas (--parallel hsdp): give a multiple."
            )

    @property
    def is_sharded(self) -> bool:
        """True if a rank holds only its part of the parameters."""
        return self.kind != "ddp"

    @property
    def shards(self) -> int:
        """Number of parts of each parameter."""
        return self.world.size // self.replicas if self.is_sharded else 1

    def __str__(self) -> str:
        return f"hsdp:{self.replicas}x{self.shards}" if self.kind == "hsdp" else self.kind


def parse(text: str | None, world_size: int | None = None, nproc_per_node: int | None = None) -> Parallel | None:
    """Return the spread of a model over ranks; None for a single rank.

    Args:
        text: `ddp`, `fsdp`, or `hsdp:RxS`: R replicas of S shards.
        world_size: Number of ranks; None: R times S.
        nproc_per_node: Number of ranks on each machine; None: the largest divisor of `world_size` that is at most 8.
    Raises:
        UsageError: The text has another form, or does not match the number of ranks.
    """
    if nproc_per_node is not None:
        whole("nproc_per_node (--nproc-per-node)", nproc_per_node, least=1)
    if text is None:
        if world_size not in (None, 1) or nproc_per_node not in (None, 1):
            raise UsageError(
                f"world_size (--world-size) is {shown(world_size)}, but parallel (--parallel) is missing: give one of "
                f"{', '.join(KINDS)}."
            )
        return None
    match = _HSDP.fullmatch(text) if isinstance(text, str) else None
    if match is None and text not in ("ddp", "fsdp"):
        raise UsageError(
            f"parallel (--parallel) is {shown(text)}: use ddp, fsdp, or hsdp:RxS with R replicas of S shards, hsdp:8x8."
        )
    if world_size is None and match is None:
        raise UsageError(f"parallel (--parallel) is '{text}' without a number of ranks: give world_size (--world-size).")
    if match is None:
        assert world_size is not None
        return Parallel("ddp" if text == "ddp" else "fsdp", World(world_size, nproc_per_node or 0))
    replicas, shards = (whole("A number of ranks in hsdp:RxS", int(number), least=1) for number in match.groups())
    if world_size not in (None, replicas * shards):
        raise UsageError(
            f"{text} has {replicas} x {shards} = {replicas * shards} ranks, but world_size (--world-size) is "
            f"{shown(world_size)}: make them equal, or omit world_size."
        )
    return Parallel("hsdp", World(replicas * shards, nproc_per_node or 0), replicas)
