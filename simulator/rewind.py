"""The state of an allocator at the start of a recorded history, rebuilt backwards from its final layout.

Every snapshot holds the final layout. Undoing the events one by one leads to the initial layout, which is empty if the
recording began with the process. Free neighbors are always merged, so free memory needs no record: it is the space between
the live blocks. Only the true size of a block that is older than the history and freed in it is uncertain: if the free
space behind it could not be a block of its own, it was part of the block.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from vramcast.simulator.rules import SMALL_BYTES, SMALL_SEGMENT_BYTES
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.trace import Action, BlockState, Trace


@dataclass(slots=True)
class AddressSpan:
    """A segment, or a mapped range of an expandable one."""

    size_bytes: int
    stream: int
    is_large: bool
    is_expandable: bool


@dataclass(slots=True)
class LiveBlock:
    """An allocated block, or one freed and waiting for another stream."""

    size_bytes: int
    requested_bytes: int
    waits: bool


@dataclass(slots=True)
class Layout:
    """Spans and live blocks by address; the rest of the spans is free.

    `lowest_mapped`: the lowest mapped address of each expandable range, by (stream, whether of a large pool).
    """

    spans: dict[int, AddressSpan]
    blocks: dict[int, LiveBlock]
    lowest_mapped: dict[tuple[int, bool], int] = field(default_factory=dict)

    @classmethod
    def at_end(cls, trace: Trace) -> Layout:
        """Return the final layout of the trace; empty if it has none."""
        layout = cls({}, {})
        if trace.segments is None or trace.blocks is None:
            return layout
        layout.spans.update((address, AddressSpan(*values)) for address, *values in trace.segments.rows())
        for _, address, size_bytes, requested_bytes, state in trace.blocks.rows():
            if state != BlockState.INACTIVE:
                layout.blocks[address] = LiveBlock(size_bytes, requested_bytes, state == BlockState.ACTIVE_PENDING_FREE)
        return layout

    @classmethod
    def at_start(cls, trace: Trace, settings: Settings) -> Layout:
        """Return the layout before the first row of `trace`."""
        layout = cls.at_end(trace)
        pools = _Pools(trace, settings)
        layout.lowest_mapped = pools.lowest_mapped
        columns = (trace.action, trace.address, trace.size_bytes, trace.stream)
        for action, address, size_bytes, stream in zip(*(reversed(column.tolist()) for column in columns), strict=True):
            layout._undo(Action(action), address, size_bytes, stream, settings, pools)
        return layout

    def rows(self) -> Iterator[tuple[int, AddressSpan, list[tuple[int, LiveBlock]]]]:
        """Yield every span with its address and its live blocks, by address."""
        addresses = sorted(self.blocks)
        for address, span in sorted(self.spans.items()):
            first, end = bisect.bisect_left(addresses, address), bisect.bisect_left(addresses, address + span.size_bytes)
            yield address, span, [(at, self.blocks[at]) for at in addresses[first:end]]

    def _undo(self, action: Action, address: int, size_bytes: int, stream: int, settings: Settings, pools: _Pools) -> None:
        if action is Action.ALLOC:
            self.blocks.pop(address, None)
        elif action is Action.FREE_REQUESTED:
            if address in self.blocks:
                self.blocks[address].waits = False
        elif action is Action.FREE_COMPLETED:
            self.blocks[address] = LiveBlock(self._block_bytes(address, size_bytes, settings), size_bytes, waits=True)
        elif action is Action.SEGMENT_ALLOC:
            self.spans.pop(address, None)
        elif action is Action.SEGMENT_FREE:
            self.spans[address] = AddressSpan(size_bytes, stream, size_bytes > SMALL_SEGMENT_BYTES, is_expandable=False)
        elif action is Action.SEGMENT_MAP:
            self._unmap(address, address + size_bytes)
        elif action is Action.SEGMENT_UNMAP:
            # Large pools have larger pages, so a smaller size is never theirs.
            is_large = size_bytes % settings.large_segment_bytes == 0 and pools.is_large(address)
            self._map(address, size_bytes, stream, is_large)

    def _block_bytes(self, address: int, requested_bytes: int, settings: Settings) -> int:
        rounded_bytes = settings.round_bytes(requested_bytes)
        start = max((at for at in self.spans if at <= address), default=None)
        if start is None or self.spans[start].is_expandable or not self.spans[start].is_large:
            return rounded_bytes
        end = min((at for at in self.blocks if at > address), default=start + self.spans[start].size_bytes)
        gap_bytes = min(end, start + self.spans[start].size_bytes) - address
        # Large pools have no block of 1 MiB or less, because a remainder of that size is never split off.
        return gap_bytes if rounded_bytes <= gap_bytes <= rounded_bytes + SMALL_BYTES else rounded_bytes

    def _map(self, address: int, size_bytes: int, stream: int, is_large: bool) -> None:
        after = self.spans.pop(address + size_bytes, None)
        size_bytes += after.size_bytes if after is not None else 0
        before = next((at for at, span in self.spans.items() if at + span.size_bytes == address), None)
        if before is not None:
            self.spans[before].size_bytes += size_bytes
        else:
            self.spans[address] = AddressSpan(size_bytes, stream, is_large, is_expandable=True)

    def _unmap(self, start: int, end: int) -> None:
        address = max((at for at in self.spans if at <= start), default=None)
        if address is None:
            return
        span = self.spans.pop(address)
        if address < start:
            self.spans[address] = AddressSpan(start - address, span.stream, span.is_large, is_expandable=True)
        if end < address + span.size_bytes:
            self.spans[end] = AddressSpan(address + span.size_bytes - end, span.stream, span.is_large, is_expandable=True)


class _Pools:
    """The pool of each address in an expandable segment: that of the nearest address with a known pool.

    Ranges of two pools lie at least a card's size apart.
    """

    def __init__(self, trace: Trace, settings: Settings) -> None:
        self.lowest_mapped: dict[tuple[int, bool], int] = {}
        known: dict[int, bool] = {}
        is_large = True  # pool of the request that caused the mapping; it follows the mapping
        columns = (trace.action, trace.address, trace.size_bytes, trace.stream)
        for action, address, size_bytes, stream in zip(*(reversed(column.tolist()) for column in columns), strict=True):
            if action <= Action.FREE_COMPLETED:
                known[address] = settings.round_bytes(size_bytes) > SMALL_BYTES
            if action == Action.ALLOC:
                is_large = known[address]
            elif action == Action.SEGMENT_MAP:
                known[address] = is_large
                lowest = self.lowest_mapped.get((stream, is_large), address)
                self.lowest_mapped[stream, is_large] = min(lowest, address)
        if trace.segments is not None:
            known |= dict(zip(trace.segments.address.tolist(), trace.segments.is_large.tolist(), strict=True))
        self._addresses = sorted(known)
        self._known = known

    def is_large(self, address: int) -> bool:
        at = bisect.bisect_left(self._addresses, address)
        near = self._addresses[max(at - 1, 0) : at + 1]
        return self._known[min(near, key=lambda other: abs(other - address))] if near else True
