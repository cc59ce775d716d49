"""Data structures of the allocator: blocks, pools of free blocks, and address ranges that grow."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

PoolId: TypeAlias = int
Entry: TypeAlias = tuple[int, int, int, "Block"]  # a block behind its key
DEFAULT_POOL: Final[PoolId] = 0  # the pool of everything outside CUDA graphs


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A piece of a segment. `prev` and `next` are its neighbors in the segment, in order of address."""

    address: int
    size_bytes: int
    stream: int
    pool: Pool
    expandable: Range | None = None
    requested_bytes: int = 0
    allocated: bool = False
    mapped: bool = True
    prev: Block | None = None
    next: Block | None = None
    users: set[int] = field(default_factory=set)  # other streams that may still use it
    age_base: int = 0
    order: int = 0  # of its segment's creation, where the allocator reuses the oldest first

    @property
    def is_split(self) -> bool:
        """Return whether the block shares its segment with other blocks."""
        return self.prev is not None or self.next is not None


def join(*blocks: Block | None) -> None:
    """Link consecutive blocks as neighbors; None means that there is none at that end."""
    for before, after in pairwise(blocks):
        if before is not None:
            before.next = after
        if after is not None:
            after.prev = before


@dataclass(slots=True)
class Pool:
    """The free blocks of one kind; `free` and `unmapped` are sorted, for each stream."""

    owner: PoolId
    is_small: bool
    free: dict[int, list[Entry]] = field(default_factory=dict)  # by stream
    unmapped: dict[int, list[Entry]] = field(default_factory=dict)
    searches: int = 0  # clock of garbage collection: a block's age is the number of searches that passed it over

    def insert(self, block: Block) -> None:
        """Add a free block, or one without memory behind it."""
        block.age_base = self.searches
        bisect.insort(self._like(block), (*_key(block), block))

    def remove(self, block: Block) -> None:
        """Remove such a block."""
        blocks = self._like(block)
        del blocks[bisect.bisect_left(blocks, _key(block))]

    def _like(self, block: Block) -> list[Entry]:
        return (self.free if block.mapped else self.unmapped).setdefault(block.stream, [])

    def blocks(self) -> list[Block]:
        """Return all free blocks: by stream, and in the order of reuse."""
        return [block for stream in sorted(self.free) for *_, block in self.free[stream]]


def _key(block: Block) -> tuple[int, int, int]:
    """Return the place of a block among free ones (the smallest first), or among unmapped ones (the lowest first)."""
    return (block.size_bytes, block.order, block.address) if block.mapped else (0, 0, block.address)


@dataclass(slots=True)
class PoolPair:
    """Two pools: the default ones, or those of a CUDA graph (or of torch.cuda.MemPool), with a count of their users."""

    small: Pool
    large: Pool
    users: int = 1
    n_segments: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """The address range of one expandable segment."""

    address: int
    size_bytes: int
    page_bytes: int
