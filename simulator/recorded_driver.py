"""A driver and an allocator which follow a record: what `replay.py` compares a history with."""

from __future__ import annotations

from collections import deque
from typing import Final

from vramcast.simulator.blocks import Block, Range, join
from vramcast.simulator.caching import CachingAllocator
from vramcast.simulator.card import Card
from vramcast.simulator.rewind import Layout
from vramcast.simulator.rules import MIN_BLOCK_BYTES, SMALL_BYTES

_SPAN_BYTES: Final = 1 << 44  # arbitrary: addresses of an expandable segment; the record does not say how many
_FAR: Final = 1 << 60  # arbitrary: where a segment is put which the record does not have


class RecordedCard(Card):
    """A driver which answers what it answered when the history was recorded; it never runs out of memory.

    `segments` are (address, bytes) which the record has and nobody has asked for yet.
    """

    def __init__(self) -> None:
        super().__init__(total_bytes=_SPAN_BYTES, limited=False)
        self.segments: deque[tuple[int, int]] = deque()
        self._far = _FAR

    def malloc(self, size_bytes: int) -> int | None:
        """Return the recorded address; one far away when the record has no such segment."""
        if self.segments and self.segments[0][1] == size_bytes:
            return self.segments[0][0]
        return self._elsewhere(size_bytes)

    def reserve(self, size_bytes: int) -> int:
        """Return where the next recorded mapping lies: there its range begins."""
        return self.segments[0][0] if self.segments else self._elsewhere(size_bytes)

    def _elsewhere(self, size_bytes: int) -> int:
        self._far += size_bytes
        return self._far

    def free(self, address: int, size_bytes: int) -> None:
        """Keep no account."""

    def charge(self, size_bytes: int) -> bool:
        """Say that there is enough."""
        return True

    def release(self, address: int) -> None:
        """Keep no account."""


class RecordedAllocator(CachingAllocator):
    """An allocator whose state can be set, and corrected."""

    def adopt(self, layout: Layout) -> dict[int, Block]:
        """Take over segments and live blocks; return the blocks by address."""
        live: dict[int, Block] = {}
        chains: dict[tuple[int, bool], list[Block]] = {}  # of expandable ranges, by stream and pool
        for start, span, rows in layout.rows():
            pool = self._large if span.is_large else self._small
            chain: list[Block] = []
            at = start
            for address, row in rows:
                if address > at:
                    chain.append(Block(at, address - at, span.stream, pool))
                block = Block(address, row.size_bytes, span.stream, pool)
                block.allocated, block.requested_bytes = not row.waits, row.requested_bytes
                if row.waits:
                    block.users.add(-1)
                    self._pending.append(block)
                chain.append(block)
                live[address] = block
                at = address + row.size_bytes
            if at < start + span.size_bytes:
                chain.append(Block(at, start + span.size_bytes - at, span.stream, pool))
            self._segments_bytes += span.size_bytes
            self.statistics.reserved.add(span.size_bytes)
            if span.is_expandable and chain:
                self._join_range(chains.setdefault((span.stream, span.is_large), []), chain)
            else:
                join(*chain)
            for block in chain:
                if block.address not in live:
                    pool.insert(block)
        for kind, chain in chains.items():
            self._complete_range(chain, layout.lowest_mapped.get(kind, chain[0].address))
        for block in live.values():
            self._active.add(block)
            self.statistics.active.add(block.size_bytes)
            self.statistics.allocated.add(block.size_bytes if block.allocated else 0)
        return live

    def _join_range(self, blocks: list[Block], more: list[Block]) -> None:
        """Append mapped blocks to those of their range, with what is not mapped between."""
        if blocks:
            end = blocks[-1].address + blocks[-1].size_bytes
            gap = Block(end, more[0].address - end, more[0].stream, more[0].pool)
            gap.mapped = False
            gap.pool.insert_unmapped(gap)
            blocks.append(gap)
        blocks += more

    def _complete_range(self, blocks: list[Block], lowest: int) -> None:
        """Put what is not mapped before and behind the blocks of a range, and make neighbours of all."""
        stream, pool = blocks[0].stream, blocks[0].pool
        start = min(lowest, blocks[0].address)
        addresses = Range(start, _SPAN_BYTES, self._page_bytes(pool))
        end = blocks[-1].address + blocks[-1].size_bytes
        for at, address, size_bytes in ((len(blocks), end, start + _SPAN_BYTES - end), (0, start, blocks[0].address - start)):
            if size_bytes:
                rest = Block(address, size_bytes, stream, pool)
                rest.mapped = False
                pool.insert_unmapped(rest)
                blocks.insert(at, rest)
        for block in blocks:
            block.expandable = addresses
        join(*blocks)

    def take_back_segment(self, address: int) -> bool:
        """Give the segment at `address` back if it is unused; whether it was."""
        for pool in (self._large, self._small):
            for block in pool.blocks():
                if block.address == address and not block.is_split:
                    self._release_segment(block)
                    return True
        return False

    def unmap_at(self, address: int) -> None:
        """Unmap the whole pages of the free block which holds `address`, if there is one."""
        for pool in (self._large, self._small):
            for block in pool.blocks():
                if block.address <= address < block.address + block.size_bytes:
                    self._unmap(block)
                    return

    def move(self, block: Block, address: int) -> Block | None:
        """Undo a wrong choice: return a block for the same request at `address`, or None when nothing is free there."""
        listener, self._listener = self._listener, None
        try:
            self.free(block)
            pool, requested_bytes = block.pool, block.requested_bytes
            size_bytes = self.settings.round_bytes(requested_bytes)
            target = next((b for b in pool.blocks() if b.address <= address < b.address + b.size_bytes), None)
            if target is None or target.address + target.size_bytes < address + size_bytes:
                return None
            pool.remove(target)
            if target.address < address:
                before = Block(target.address, address - target.address, target.stream, pool, target.expandable)
                join(target.prev, before, target)
                target.address, target.size_bytes = address, target.size_bytes - before.size_bytes
                pool.insert(before)
            remaining_bytes = target.size_bytes - size_bytes
            least_bytes = MIN_BLOCK_BYTES if pool.is_small or target.expandable is not None else SMALL_BYTES + 1
            return self._hand_out(target, size_bytes, requested_bytes, remaining_bytes >= least_bytes)
        finally:
            self._listener = listener
