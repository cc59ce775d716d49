"""PyTorch's CUDA caching allocator, request by request, without torch or a GPU: the rules in plain Python.

    segment  memory from the driver: 2 MiB for small requests, 20 MiB or more for large ones
    block    a piece of a segment, allocated or free; the blocks of a segment tile it and link to their neighbors
    pool     the free blocks of one kind (small or large), by stream; best fit: the smallest block that is large enough,
             among equals the lowest address, or since torch 2.14 the oldest segment
    page     with expandable segments: physical memory, mapped piece by piece into one long address range

A request is rounded and served from its pool or from a new segment; the remainder of the block is split off. A free block
merges with its free neighbors at once. Segments go back to the driver only when the cache is emptied, when the driver has
no memory left (release, retry, then fail), or by garbage collection.

`compiled.py` plays whole traces by the same rules, a hundred times faster; both are compared with torch's own allocator on
the null GPU (tests/simulator). Source of the rules: torch 2.11, c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from vramcast.core.errors import SimulatedOutOfMemory
from vramcast.core.units import torch_size
from vramcast.simulator.blocks import DEFAULT_POOL, Block, Pool, PoolId, PoolPair, Range, join
from vramcast.simulator.card import Card
from vramcast.simulator.outcome import Statistics
from vramcast.simulator.rules import MIN_BLOCK_BYTES, RULES, SMALL_BYTES, SMALL_SEGMENT_BYTES, AllocatorRules
from vramcast.simulator.settings import NO_LIMIT, Settings
from vramcast.tracer.format.trace import Action

# Called with action, address, bytes and stream. For ALLOC and FREE_* these are the requested bytes.
Listener: TypeAlias = Callable[[Action, int, int, int], None]


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """A segment as in `torch.cuda.memory_snapshot()`: a mapped range and its blocks by address."""

    address: int
    size_bytes: int
    stream: int
    is_large: bool
    is_expandable: bool
    pool: PoolId
    blocks: tuple[Block, ...]


class CachingAllocator:
    """The caching allocator of one device.

    Args:
        settings: Allocator settings.
        card: The card below the allocator.
        listener: Called for every event, in the order of torch's own memory history.
        waits: Whether a block in use by another stream stays taken until `complete` is called for it. Otherwise such work
            is over by the next request, as on the null GPU.
        rules: Rules of the release of torch; default: 2.11.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        card: Card | None = None,
        *,
        listener: Listener | None = None,
        waits: bool = False,
        rules: AllocatorRules = RULES,
    ) -> None:
        self.settings = settings or Settings()
        self.card = card or Card()
        self.statistics = Statistics()
        self._listener = listener
        self._waits = waits
        self._rules = rules
        self._orders = itertools.count(1) if rules.oldest_first else itertools.repeat(0)
        self._small = Pool(DEFAULT_POOL, is_small=True)
        self._large = Pool(DEFAULT_POOL, is_small=False)
        self._pairs: dict[PoolId, PoolPair] = {DEFAULT_POOL: PoolPair(self._small, self._large)}  # by owner
        self._freeable: dict[PoolId, PoolPair] = {}
        self._recording: list[PoolId] = []
        self.pending: list[Block] = []  # freed, but possibly still in use by another stream
        self._active: set[Block] = set()
        self._segments_bytes = 0
        self._allowed_bytes = rules.allowed_bytes(self.settings.memory_fraction, self.card.total_bytes)

    # ---------------------------------------------------------------------------------------- requests
    def malloc(self, requested_bytes: int, stream: int = 0) -> Block:
        """Return a block of at least `requested_bytes` for work on `stream`.

        Raises:
            SimulatedOutOfMemory: The card is full even after all unused segments were released. The allocator stays usable.
        """
        if not self._captures and not self._waits:
            self._complete_all()
        settings = self.settings
        size_bytes = settings.round_bytes(requested_bytes)
        pool = self._pool(size_bytes)
        block = self._find(pool, size_bytes, stream) or self._obtain(pool, size_bytes, stream)
        if block is None:
            raise self._out_of_memory(size_bytes, stream)
        remaining_bytes = block.size_bytes - size_bytes
        if pool.is_small or settings.expandable_segments:
            split = remaining_bytes >= MIN_BLOCK_BYTES
        else:
            split = size_bytes < settings.max_split_bytes and remaining_bytes > SMALL_BYTES
        return self._hand_out(block, size_bytes, requested_bytes, split)

    def free(self, block: Block) -> None:
        """Take a block back; at once, unless another stream uses it."""
        block.allocated = False
        statistics = self.statistics
        statistics.n_allocated.add(-1)
        statistics.allocated.add(-block.size_bytes)
        self._tell(Action.FREE_REQUESTED, block.address, block.requested_bytes, block.stream)
        if block.users:
            self.pending.append(block)
        else:
            self._free_block(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Record that work on `stream` uses the block: once freed, the block waits for that stream."""
        if stream != block.stream:
            block.users.add(stream)

    def complete(self, block: Block) -> None:
        """Record that all work on a freed block is over."""
        self.pending.remove(block)
        block.users.clear()
        self._free_block(block)

    def empty_cache(self) -> None:
        """Return all unused segments to the driver."""
        self._release_cached()

    def take(self, size_bytes: int) -> None:
        """Take card memory for something other than the allocator: a context, a library.

        Raises:
            SimulatedOutOfMemory: The card has too little memory left; the allocator's cache does not make room for others.
        """
        if not self.card.take(size_bytes):
            raise self._out_of_memory(size_bytes, 0)

    # ---------------------------------------------------------------------------------------- private pools
    def begin_pool(self, pool: PoolId) -> None:
        """Serve requests from the private pool `pool` until `end_pool`; create the pool, or add a user to it."""
        if pool in self._pairs:
            self._pairs[pool].users += 1
        else:
            self._pairs[pool] = PoolPair(Pool(pool, is_small=True), Pool(pool, is_small=False))
        self._recording.append(pool)

    def end_pool(self, pool: PoolId) -> None:
        """Serve requests from the other pools again."""
        self._recording.remove(pool)

    def release_pool(self, pool: PoolId) -> None:
        """Remove one user from a private pool; without users, its unused segments are released like any others."""
        private = self._pairs[pool]
        private.users -= 1
        if not private.users:
            self._freeable[pool] = private

    @property
    def _captures(self) -> bool:
        return bool(self._recording) and self._rules.pools_capture

    # ---------------------------------------------------------------------------------------- inspection
    def blocks(self) -> Iterator[Block]:
        """Yield every mapped block, allocated or free."""
        yield from self._active
        for pool in self._pools():
            yield from pool.blocks()

    def layout(self) -> list[SegmentLayout]:
        """Return the segments with their blocks, by address; an expandable segment is one row per mapped range."""
        rows = []
        for head in self.blocks():
            if head.prev is not None and head.prev.mapped:
                continue
            blocks = []
            block: Block | None = head
            while block is not None and block.mapped:
                blocks.append(block)
                block = block.next
            size_bytes = sum(b.size_bytes for b in blocks)
            rows.append(
                SegmentLayout(
                    head.address,
                    size_bytes,
                    head.stream,
                    not head.pool.is_small,
                    head.expandable is not None,
                    head.pool.owner,
                    tuple(blocks),
                )
            )
        return sorted(rows, key=lambda row: row.address)

    def _pools(self) -> Iterator[Pool]:
        for pair in self._pairs.values():
            yield pair.small
            yield pair.large

    # ---------------------------------------------------------------------------------------- serving a request
    def _pool(self, size_bytes: int) -> Pool:
        pair = self._pairs[self._recording[0] if self._recording else DEFAULT_POOL]
        return pair.small if size_bytes <= SMALL_BYTES else pair.large

    def _find(self, pool: Pool, size_bytes: int, stream: int) -> Block | None:
        """Remove the best fitting free block from its pool and return it."""
        settings = self.settings
        if self._collects_garbage:
            pool.searches += 1
        blocks = pool.free.get(stream)
        if not blocks:
            return None
        at = bisect.bisect_left(blocks, (size_bytes,))
        if at == len(blocks):
            return None
        if settings.expandable_segments:
            # The size of a growable block is the size that it can grow to; the best fit is the one with the smallest such
            # size.
            while at + 1 < len(blocks) and _growable_bytes(blocks[at + 1][-1]) < _growable_bytes(blocks[at][-1]):
                at += 1
        found_bytes, *_, block = blocks[at]
        if size_bytes < settings.max_split_bytes:
            if found_bytes >= settings.max_split_bytes:
                return None
        elif found_bytes >= size_bytes + settings.oversize_bytes:
            return None
        del blocks[at]
        return block

    def _obtain(self, pool: Pool, size_bytes: int, stream: int) -> Block | None:
        """Return a new segment from the driver, if necessary after making room; None if that fails."""
        if self._collects_garbage:
            self._collect_garbage()
        block = self._new_segment(pool, size_bytes, stream)
        if block is None and self._release_oversize(pool, size_bytes, stream):
            block = self._new_segment(pool, size_bytes, stream)
        if block is None and not self._captures:
            self._release_cached()
            self.statistics.n_retries += 1
            block = self._new_segment(pool, size_bytes, stream)
        return block

    def _new_segment(self, pool: Pool, size_bytes: int, stream: int) -> Block | None:
        segment_bytes = self.settings.segment_bytes(size_bytes)
        if self._allowed_bytes is not None and self._segments_bytes + segment_bytes > self._allowed_bytes:
            return None
        if self.settings.expandable_segments:
            return self._expand(pool, size_bytes, stream)
        address = self.card.malloc(segment_bytes)
        if address is None:
            return None
        self._pairs[pool.owner].n_segments += 1
        statistics = self.statistics
        self._segments_bytes += segment_bytes
        statistics.reserved.add(segment_bytes)
        statistics.n_segments.add(1)
        statistics.n_device_allocs += 1
        self._tell(Action.SEGMENT_ALLOC, address, segment_bytes, stream)
        return Block(address, segment_bytes, stream, pool, order=next(self._orders))

    def _hand_out(self, block: Block, size_bytes: int, requested_bytes: int, split: bool) -> Block:
        statistics = self.statistics
        was_split = block.is_split
        if split:
            remaining = block
            block = Block(remaining.address, size_bytes, remaining.stream, remaining.pool, remaining.expandable)
            block.order = remaining.order
            join(remaining.prev, block, remaining)
            remaining.address += size_bytes
            remaining.size_bytes -= size_bytes
            remaining.pool.insert(remaining)
            if block.expandable is None:
                if was_split:
                    statistics.inactive_split.add(-size_bytes)
                else:
                    statistics.inactive_split.add(remaining.size_bytes)
                    statistics.n_inactive_split.add(1)
        elif was_split and block.expandable is None:
            statistics.inactive_split.add(-block.size_bytes)
            statistics.n_inactive_split.add(-1)
        block.allocated = True
        block.requested_bytes = requested_bytes
        self._active.add(block)
        self._tell(Action.ALLOC, block.address, requested_bytes, block.stream)
        statistics.n_allocated.add(1)
        statistics.allocated.add(block.size_bytes)
        statistics.active.add(block.size_bytes)
        statistics.requested.add(requested_bytes)
        return block

    def _out_of_memory(self, size_bytes: int, stream: int) -> SimulatedOutOfMemory:
        statistics = self.statistics
        statistics.n_ooms += 1
        self._tell(Action.OOM, self.card.free_bytes, size_bytes, stream)
        private_bytes = sum(block.size_bytes for pool in self._pools() if pool.owner for block in pool.blocks())
        requested_bytes = self.settings.segment_bytes(size_bytes)
        allocated_bytes = statistics.allocated.current + private_bytes
        text = [
            f"CUDA out of memory. Tried to allocate {torch_size(requested_bytes)}. GPU 0 has a total capacity of "
            f"{torch_size(self.card.total_bytes)} of which {torch_size(self.card.free_bytes)} is free. "
        ]
        if self._allowed_bytes is not None:
            text.append(f"{torch_size(self._allowed_bytes)} allowed; ")
        text.append(f"Of the allocated memory {torch_size(allocated_bytes)} is allocated by PyTorch, ")
        if private_bytes:
            text.append(f"with {torch_size(private_bytes)} allocated in private pools (e.g., CUDA Graphs), ")
        unallocated_bytes = statistics.reserved.current - allocated_bytes
        text.append(f"and {torch_size(unallocated_bytes)} is reserved by PyTorch but unallocated.")
        return SimulatedOutOfMemory("".join(text), requested_bytes)

    # ---------------------------------------------------------------------------------------- taking a block back
    def _free_block(self, block: Block) -> None:
        statistics = self.statistics
        self._tell(Action.FREE_COMPLETED, block.address, block.requested_bytes, block.stream)
        self._active.remove(block)
        active_bytes, requested_bytes = block.size_bytes, block.requested_bytes
        split_bytes = n_split = 0
        for neighbour in (block.prev, block.next):
            merged_bytes = self._merge(block, neighbour)
            if merged_bytes:
                split_bytes -= merged_bytes
                n_split -= 1
        block.pool.insert(block)
        if block.is_split:
            split_bytes += block.size_bytes
            n_split += 1
        if block.expandable is None:
            statistics.inactive_split.add(split_bytes)
            statistics.n_inactive_split.add(n_split)
        statistics.active.add(-active_bytes)
        statistics.requested.add(-requested_bytes)

    def _merge(self, block: Block, neighbour: Block | None) -> int:
        """Merge a free neighbor into `block` and return its bytes; return 0 if it cannot be merged."""
        if neighbour is None or neighbour.allocated or neighbour.users or neighbour.mapped != block.mapped:
            return 0
        neighbour.pool.remove(neighbour)
        if block.prev is neighbour:
            block.address = neighbour.address
            join(neighbour.prev, block)
        else:
            join(block, neighbour.next)
        block.size_bytes += neighbour.size_bytes
        return neighbour.size_bytes

    def _complete_all(self) -> None:
        for block in self.pending:
            block.users.clear()
            self._free_block(block)
        self.pending.clear()

    # ---------------------------------------------------------------------------------------- release to the driver
    @property
    def _collects_garbage(self) -> bool:
        return self._allowed_bytes is not None and self.settings.garbage_collection_threshold > 0

    def _collect_garbage(self) -> None:
        """Release unused large segments, starting with those passed over more often than the average."""
        assert self._allowed_bytes is not None
        target_bytes = self._segments_bytes - int(self.settings.garbage_collection_threshold * self._allowed_bytes)
        if target_bytes <= 0:
            return
        pool = self._large
        unused = [block for block in pool.blocks() if not block.is_split]
        total_age = sum(pool.searches - block.age_base for block in unused)
        reclaimed_bytes = 0
        while unused and reclaimed_bytes < target_bytes:
            threshold = total_age / len(unused)
            old = [block for block in unused if pool.searches - block.age_base >= threshold]
            if not old:
                return
            for block in old:
                unused.remove(block)
                total_age -= pool.searches - block.age_base
                reclaimed_bytes += block.size_bytes
                self._release_segment(block)

    def _release_oversize(self, pool: Pool, size_bytes: int, stream: int) -> bool:
        """Release as many unsplittable blocks as the request needs; return whether they were enough."""
        limit_bytes = self.settings.max_split_bytes
        # torch 2.11 stops here with an internal error if segments are expandable.
        if limit_bytes == NO_LIMIT or self.settings.expandable_segments:
            return False
        wanted_bytes = max(size_bytes, limit_bytes)
        blocks = pool.free.get(stream, [])
        at = bisect.bisect_left(blocks, (wanted_bytes,))
        if at < len(blocks):
            self._release_segment(blocks[at][-1])
            return True
        released_bytes = 0
        while blocks and released_bytes < wanted_bytes and blocks[-1][0] >= limit_bytes:
            released_bytes += blocks[-1][0]
            self._release_segment(blocks[-1][-1])
        return released_bytes >= wanted_bytes

    def _release_cached(self) -> None:
        """Release all unused segments of the default pools and of private pools without users."""
        self._complete_all()
        self._release_pool_blocks(self._large)
        self._release_pool_blocks(self._small)
        for name, private in sorted(self._freeable.items()):
            self._release_pool_blocks(private.small)
            self._release_pool_blocks(private.large)
            if not private.n_segments:
                del self._freeable[name], self._pairs[name]

    def _release_pool_blocks(self, pool: Pool) -> None:
        for block in pool.blocks():
            if block.expandable is not None:
                self._unmap(block)
            elif not block.is_split:
                self._release_segment(block)

    def _release_segment(self, block: Block) -> None:
        statistics = self.statistics
        self._tell(Action.SEGMENT_FREE, block.address, block.size_bytes, block.stream)
        block.pool.remove(block)
        self.card.free(block.address, block.size_bytes)
        self._pairs[block.pool.owner].n_segments -= 1
        self._segments_bytes -= block.size_bytes
        statistics.reserved.add(-block.size_bytes)
        statistics.n_segments.add(-1)
        statistics.n_device_frees += 1

    # ---------------------------------------------------------------------------------------- expandable segments
    def _expand(self, pool: Pool, size_bytes: int, stream: int) -> Block | None:
        """Map pages behind a free block, or at the lowest place with enough addresses; return None when memory runs out."""
        block = self._find_addresses(pool, size_bytes, stream)
        if block is None:
            return None
        if not block.mapped and not self._map(block, min(block.size_bytes, size_bytes)):
            return None
        while block.size_bytes < size_bytes:
            following = block.next
            if following is None:
                return None  # larger than the whole range: torch does not expect that
            if not self._map(following, min(size_bytes - block.size_bytes, following.size_bytes)):
                return None
            block = following  # it has absorbed the free block before it
        self._pairs[pool.owner].n_segments += 1
        pool.remove(block)
        return block

    def _find_addresses(self, pool: Pool, size_bytes: int, stream: int) -> Block | None:
        """Return the lowest block, free or unmapped, that starts a stretch of enough addresses without an allocated block."""
        for *_, unmapped in pool.unmapped.get(stream, ()):
            first = unmapped
            if first.prev is not None and _is_free(first.prev):
                first = first.prev
            found_bytes = 0
            block: Block | None = first
            while block is not None and found_bytes < size_bytes and _is_free(block):
                found_bytes += block.size_bytes
                block = block.next
            if found_bytes >= size_bytes:
                return first
        page_bytes = self._page_bytes(pool)
        # A ninth more than the card: pages released early in the range may be needed again at its end.
        span_bytes = self.card.total_bytes + self.card.total_bytes // 8
        span_bytes = -(-span_bytes // page_bytes) * page_bytes
        if size_bytes > span_bytes and self._rules.refuses_beyond_range:
            return None
        addresses = Range(self.card.reserve(span_bytes), span_bytes, page_bytes)
        block = Block(addresses.address, span_bytes, stream, pool, addresses, order=next(self._orders))
        block.mapped = False
        pool.insert(block)
        return block

    def _page_bytes(self, pool: Pool) -> int:
        return SMALL_SEGMENT_BYTES if pool.is_small else self.settings.large_segment_bytes

    def _map(self, block: Block, size_bytes: int) -> bool:
        """Map memory to the first `size_bytes` of an unmapped block, in whole pages; return whether there was enough."""
        assert block.expandable is not None
        page_bytes = block.expandable.page_bytes
        mapped_bytes = -(-size_bytes // page_bytes) * page_bytes
        for n_charged in range(mapped_bytes // page_bytes):
            if not self.card.charge(page_bytes):
                for _ in range(n_charged):
                    self.card.refund(page_bytes)
                return False
        pool = block.pool
        pool.remove(block)
        block.mapped = True
        if mapped_bytes < block.size_bytes:
            rest = Block(block.address + mapped_bytes, block.size_bytes - mapped_bytes, block.stream, pool, block.expandable)
            rest.order = block.order
            rest.mapped = False
            join(block, rest, block.next)
            pool.insert(rest)
            block.size_bytes = mapped_bytes
        address = block.address
        self._merge(block, block.prev)
        self._merge(block, block.next)
        pool.insert(block)
        self._segments_bytes += mapped_bytes
        self.statistics.reserved.add(mapped_bytes)
        self.statistics.n_device_allocs += 1
        self._tell(Action.SEGMENT_MAP, address, mapped_bytes, block.stream)
        return True

    def _unmap(self, block: Block) -> None:
        """Unmap the whole pages inside a free block; bytes that do not fill a page stay mapped."""
        addresses = block.expandable
        assert addresses is not None
        page_bytes = addresses.page_bytes
        offset_bytes = block.address - addresses.address
        begin = addresses.address + -(-offset_bytes // page_bytes) * page_bytes
        end = addresses.address + (offset_bytes + block.size_bytes) // page_bytes * page_bytes
        if begin >= end:
            return
        pool = block.pool
        pool.remove(block)
        if begin > block.address:
            before = Block(block.address, begin - block.address, block.stream, pool, addresses, order=block.order)
            join(block.prev, before, block)
            pool.insert(before)
        block_end = block.address + block.size_bytes
        if block_end > end:
            after = Block(end, block_end - end, block.stream, pool, addresses, order=block.order)
            join(block, after, block.next)
            pool.insert(after)
        block.address, block.size_bytes, block.mapped = begin, end - begin, False
        self._merge(block, block.prev)
        self._merge(block, block.next)
        pool.insert(block)
        unmapped_bytes = end - begin
        for _ in range(0, unmapped_bytes, page_bytes):
            self.card.refund(page_bytes)
        self._pairs[pool.owner].n_segments -= 1
        self._segments_bytes -= unmapped_bytes
        self.statistics.reserved.add(-unmapped_bytes)
        self.statistics.n_device_frees += 1
        self._tell(Action.SEGMENT_UNMAP, begin, unmapped_bytes, block.stream)
        if not block.is_split:
            pool.remove(block)
            self.card.release(addresses.address)

    def _tell(self, action: Action, address: int, size_bytes: int, stream: int) -> None:
        if self._listener is not None:
            self._listener(action, address, size_bytes, stream)


def _is_free(block: Block) -> bool:
    return not block.allocated and not block.users


def _growable_bytes(block: Block) -> int:
    following = block.next
    return block.size_bytes + (following.size_bytes if following is not None and not following.mapped else 0)
