"""Replay of a recorded memory history through the simulator, compared event by event.

The driver's decisions are taken from the record: the address of each segment, and when segments are released. All else is
predicted: whether a request needs a new segment and how large, which block serves it, what merges, which pages an
expandable segment maps, and the final layout.

A history may start late. Its initial state is then rebuilt backwards from the final layout, which every snapshot has. Only
the true size of an older block is sometimes unknown (it may be up to 1 MiB larger than the request). After a wrong
prediction the recorded place is taken over, so that one error is counted once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.core.plain import to_plain
from vramcast.simulator.blocks import Block, Range, join
from vramcast.simulator.caching import CachingAllocator
from vramcast.simulator.card import Card
from vramcast.simulator.rewind import Layout
from vramcast.simulator.rules import MIN_BLOCK_BYTES, N_INTERVALS, SMALL_BYTES, AllocatorRules
from vramcast.simulator.settings import NO_LIMIT, Settings
from vramcast.tracer.format.trace import Action, Trace

_MAX_MISMATCHES: Final = 20  # arbitrary: wrong predictions reported in words
_SPAN_BYTES: Final = 1 << 44  # arbitrary: size of an expandable segment's range, which is not recorded
_FAR: Final = 1 << 60  # arbitrary: address of a segment that is not in the record


class RecordedCard(Card):
    """A driver that repeats its recorded answers; it never runs out of memory.

    `segments` are the recorded (address, bytes) that have not been requested yet.
    """

    def __init__(self) -> None:
        super().__init__(total_bytes=_SPAN_BYTES, limited=False)
        self.segments: deque[tuple[int, int]] = deque()
        self._far = _FAR

    def malloc(self, size_bytes: int) -> int | None:
        """Return the recorded address; a distant one if the record has no such segment."""
        if self.segments and self.segments[0][1] == size_bytes:
            return self.segments[0][0]
        return self._elsewhere(size_bytes)

    def reserve(self, size_bytes: int) -> int:
        """Return the address of the next recorded mapping: there its range begins."""
        return self.segments[0][0] if self.segments else self._elsewhere(size_bytes)

    def _elsewhere(self, size_bytes: int) -> int:
        self._far += size_bytes
        return self._far

    def free(self, address: int, size_bytes: int) -> None:
        """Do nothing: a recorded card does not count bytes."""

    def charge(self, size_bytes: int) -> bool:
        """Return True: there is always enough memory."""
        return True

    def release(self, address: int) -> None:
        """Do nothing: a recorded card does not count addresses."""


class RecordedAllocator(CachingAllocator):
    """An allocator with a state that can be set and corrected."""

    def adopt(self, layout: Layout) -> dict[int, Block]:
        """Take over segments and live blocks; return the blocks by address."""
        live: dict[int, Block] = {}
        chains: dict[tuple[int, bool], list[Block]] = {}  # blocks of expandable ranges, by stream and pool
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
                    self.pending.append(block)
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
        """Append mapped blocks to those of their range, with unmapped ones in the gaps."""
        if blocks:
            end = blocks[-1].address + blocks[-1].size_bytes
            gap = Block(end, more[0].address - end, more[0].stream, more[0].pool)
            gap.mapped = False
            gap.pool.insert(gap)
            blocks.append(gap)
        blocks += more

    def _complete_range(self, blocks: list[Block], lowest: int) -> None:
        """Add the unmapped blocks before and behind the blocks of a range, and link all as neighbors."""
        stream, pool = blocks[0].stream, blocks[0].pool
        start = min(lowest, blocks[0].address)
        addresses = Range(start, _SPAN_BYTES, self._page_bytes(pool))
        end = blocks[-1].address + blocks[-1].size_bytes
        for at, address, size_bytes in ((len(blocks), end, start + _SPAN_BYTES - end), (0, start, blocks[0].address - start)):
            if size_bytes:
                rest = Block(address, size_bytes, stream, pool)
                rest.mapped = False
                pool.insert(rest)
                blocks.insert(at, rest)
        for block in blocks:
            block.expandable = addresses
        join(*blocks)

    def take_back_segment(self, address: int) -> bool:
        """Release the segment at `address` if it is unused; return whether it was."""
        for pool in (self._large, self._small):
            for block in pool.blocks():
                if block.address == address and not block.is_split:
                    self._release_segment(block)
                    return True
        return False

    def unmap_at(self, address: int) -> None:
        """Unmap the whole pages of the free block at `address`, if there is one."""
        for pool in (self._large, self._small):
            for block in pool.blocks():
                if block.address <= address < block.address + block.size_bytes:
                    self._unmap(block)
                    return

    def move(self, block: Block, address: int) -> Block | None:
        """Undo a wrong choice: return a block for the same request at `address`, or None if nothing is free there."""
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
                before = Block(
                    target.address, address - target.address, target.stream, pool, target.expandable, order=target.order
                )
                join(target.prev, before, target)
                target.address, target.size_bytes = address, target.size_bytes - before.size_bytes
                pool.insert(before)
            remaining_bytes = target.size_bytes - size_bytes
            least_bytes = MIN_BLOCK_BYTES if pool.is_small or target.expandable is not None else SMALL_BYTES + 1
            return self._hand_out(target, size_bytes, requested_bytes, remaining_bytes >= least_bytes)
        finally:
            self._listener = listener


@dataclass(slots=True)
class PeakPair:
    """A recorded and a predicted peak, in bytes."""

    recorded: int = 0
    simulated: int = 0


@brief
@dataclass(slots=True)
class Replay:
    """Accuracy of a replay; sizes in bytes.

    Attributes:
        events: Rows of the history.
        allocations: ALLOC rows.
        address_matches: Allocations with the predicted address.
        segments_recorded: SEGMENT_ALLOC, SEGMENT_MAP and SEGMENT_UNMAP rows.
        segments_predicted: Such events of the simulator.
        segments_matched: Those that agree in place and size.
        final_layout_equal: Whether every segment and block at the end has the recorded address, size and state; None if
            the record has no layout.
        peaks: Of `allocated` and `reserved` bytes. The recorded allocated bytes are the requests' rounded sizes, because a
            history does not hold the sizes of blocks.
        mismatches: The first wrong predictions, in words.
    """

    events: int = 0
    allocations: int = 0
    address_matches: int = 0
    segments_recorded: int = 0
    segments_predicted: int = 0
    segments_matched: int = 0
    final_layout_equal: bool | None = None
    peaks: dict[str, PeakPair] = field(default_factory=lambda: {"allocated": PeakPair(), "reserved": PeakPair()})
    starts_cold: bool = True
    settings: str = "default"
    mismatches: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `vramcast replay`."""
        return dict(to_plain(self))

    @property
    def exact(self) -> bool:
        """Return whether every prediction was right."""
        return (
            self.address_matches == self.allocations
            and self.segments_matched == self.segments_recorded == self.segments_predicted
            and self.final_layout_equal is not False
        )


def replay(trace: Trace, settings: Settings | None = None) -> Replay:
    """Return how well the simulator predicts the history in `trace`.

    Args:
        trace: A trace of a recorded snapshot, or any trace with addresses and segment events.
        settings: Allocator settings of the recorded process; default: those in the record.

    Returns:
        The numbers of right predictions of addresses and segments, and both peaks in bytes.

    Raises:
        UsageError: The trace has no segment events and no layout: there is nothing to compare with.

    Example:
        >>> recorded = vramcast.simulate(trace).replayed()
        >>> vramcast.replay(recorded).exact
        True
    """
    if len(trace) and not trace.is_segment_event().any() and trace.segments is None:
        raise UsageError(
            "The trace has neither segment events nor a final layout: only an allocator's recording can be replayed."
        )
    return _Player(trace, settings or recorded_settings(trace)).run()


def recorded_settings(trace: Trace) -> Settings:
    """Return the settings that a history was recorded under, as far as they are in the record, otherwise torch's defaults."""
    known = trace.header.get("allocator_settings")
    if not isinstance(known, dict):
        return Settings()
    split = known.get("max_split_size")
    divisions = known.get("roundup_power2_divisions")
    text = known.get("PYTORCH_CUDA_ALLOC_CONF")
    settings = Settings.parse(text if isinstance(text, str) else "", AllocatorRules.of_trace(trace))
    if isinstance(split, int) and split > 0:
        settings = replace(settings, max_split_bytes=min(split, NO_LIMIT))
    if isinstance(divisions, dict) and len(divisions) == N_INTERVALS and all(str(key).isdigit() for key in divisions):
        by_interval = sorted(divisions.items(), key=lambda item: int(item[0]))
        settings = replace(settings, roundup_divisions=tuple(int(n) for _, n in by_interval))
    return replace(settings, expandable_segments=known.get("expandable_segments") is True or settings.expandable_segments)


class _Player:
    def __init__(self, trace: Trace, settings: Settings) -> None:
        self._trace = trace
        self._card = RecordedCard()
        self._allocator = RecordedAllocator(
            settings, self._card, listener=self._listen, waits=True, rules=AllocatorRules.of_trace(trace)
        )
        self._found = Replay(events=len(trace), settings=str(settings))
        self._mismatches: list[str] = []
        self._predicted: list[tuple[Action, int, int]] = []
        self._live: dict[int, Block] = {}
        self._row = 0

    def run(self) -> Replay:
        trace, found = self._trace, self._found
        start = Layout.at_start(trace, self._allocator.settings)
        self._live = self._allocator.adopt(start)
        found.starts_cold = not start.spans
        settings = self._allocator.settings
        allocated = sum(block.size_bytes for block in start.blocks.values() if not block.waits)
        reserved = sum(span.size_bytes for span in start.spans.values())
        peaks = found.peaks
        peaks["allocated"].recorded, peaks["reserved"].recorded = allocated, reserved
        columns = (trace.action.tolist(), trace.address.tolist(), trace.size_bytes.tolist(), trace.stream.tolist())
        for self._row, (code, address, size_bytes, stream) in enumerate(zip(*columns, strict=True)):
            action = Action(code)
            if action is Action.ALLOC:
                self._allocate(address, size_bytes, stream)
                allocated += settings.round_bytes(size_bytes)
            elif action is Action.FREE_REQUESTED:
                self._free(address)
                allocated -= settings.round_bytes(size_bytes)
            elif action is Action.FREE_COMPLETED:
                self._complete(address)
            elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
                found.segments_recorded += 1
                self._card.segments.append((address, size_bytes))
                reserved += size_bytes
            elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
                self._give_back(action, address, size_bytes)
                reserved -= size_bytes
            peaks["allocated"].recorded = max(peaks["allocated"].recorded, allocated)
            peaks["reserved"].recorded = max(peaks["reserved"].recorded, reserved)
        statistics = self._allocator.statistics
        peaks["allocated"].simulated, peaks["reserved"].simulated = statistics.allocated.peak, statistics.reserved.peak
        found.final_layout_equal = self._layout_equal()
        found.mismatches = tuple(self._mismatches)
        return found

    def _listen(self, action: Action, address: int, size_bytes: int, stream: int) -> None:
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            self._found.segments_predicted += 1
            if self._card.segments and self._card.segments[0] == (address, size_bytes):
                self._card.segments.popleft()
                self._found.segments_matched += 1
            else:
                self._tell(f"a segment of {size_bytes} B at {address:#x} is predicted, but not recorded")
        elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            self._predicted.append((action, address, size_bytes))

    def _tell(self, what: str) -> None:
        if len(self._mismatches) < _MAX_MISMATCHES:
            self._mismatches.append(f"row {self._row}: {what}")

    def _allocate(self, address: int, size_bytes: int, stream: int) -> None:
        found = self._found
        found.allocations += 1
        block = self._allocator.malloc(size_bytes, stream)
        self._take_over_segments()
        if block.address == address:
            found.address_matches += 1
        else:
            self._tell(f"{size_bytes} B are predicted at {block.address:#x}, but recorded at {address:#x}")
            moved = self._allocator.move(block, address)
            if moved is None:
                return  # nothing is free there: the record contradicts itself, or the initial state is uncertain
            block = moved
        self._live[address] = block

    def _take_over_segments(self) -> None:
        """Take over segments that the record has and the simulator did not request."""
        for address, size_bytes in self._card.segments:
            self._tell(f"a segment of {size_bytes} B at {address:#x} is recorded, but not predicted")
        self._card.segments.clear()

    def _free(self, address: int) -> None:
        block = self._live.get(address)
        if block is None:
            return
        # Treat it as used by another stream until its recorded completion.
        self._allocator.record_stream(block, -1)
        self._allocator.free(block)

    def _complete(self, address: int) -> None:
        block = self._live.pop(address, None)
        if block is None:
            return
        if block.allocated:  # the history begins between the two rows
            self._allocator.record_stream(block, -1)
            self._allocator.free(block)
        self._allocator.complete(block)

    def _give_back(self, action: Action, address: int, size_bytes: int) -> None:
        found = self._found
        self._take_over_segments()
        if action is Action.SEGMENT_FREE:
            if not self._allocator.take_back_segment(address):
                self._tell(f"the segment at {address:#x} is released, but predicted to be in use")
            return
        # The allocator chooses which pages of a range to unmap, so they are predicted; the time is not.
        found.segments_recorded += 1
        self._predicted.clear()
        self._allocator.unmap_at(address)
        found.segments_predicted += len(self._predicted)
        if (action, address, size_bytes) in self._predicted:
            found.segments_matched += 1
        else:
            self._tell(f"{size_bytes} B at {address:#x} are unmapped; predicted: {self._predicted}")

    def _layout_equal(self) -> bool | None:
        if self._trace.segments is None:
            return None
        end = Layout.at_end(self._trace)
        recorded = [
            (address, span.size_bytes, [(at, block.size_bytes, block.waits) for at, block in live])
            for address, span, live in end.rows()
        ]
        simulated = [
            (
                segment.address,
                segment.size_bytes,
                [(b.address, b.size_bytes, not b.allocated) for b in segment.blocks if b.allocated or b.users],
            )
            for segment in self._allocator.layout()
        ]
        return recorded == simulated
