"""A recorded memory history through the simulator, compared event by event.

What the driver decided is taken from the record: at which address a segment lies, and when segments go back. All else is
predicted: whether a request needs a new segment and how large, which block serves it, what merges, which pages an expandable
segment maps, and what is left at the end.

A history may start late. Then the state at its start is rebuilt backwards from the final layout, which every snapshot has;
only how large an older block really was is not always known (it may be up to 1 MiB larger than the request).
After a wrong prediction the recorded place is taken over, so that one slip is counted once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.simulator.blocks import Block
from vramcast.simulator.recorded_driver import RecordedAllocator, RecordedCard
from vramcast.simulator.rewind import Layout
from vramcast.simulator.rules import N_INTERVALS, AllocatorRules
from vramcast.simulator.settings import NO_LIMIT, Settings
from vramcast.tracer.format.trace import Action, Trace

_MAX_MISMATCHES: Final = 20  # arbitrary: how many wrong predictions are told in words


@dataclass(slots=True)
class Replay:
    """How well a history was predicted; sizes in bytes.

    Attributes:
        events: Rows of the history.
        allocations: ALLOC rows.
        address_matches: Allocations whose address was predicted.
        segments_recorded: SEGMENT_ALLOC and SEGMENT_MAP rows, and SEGMENT_UNMAP rows.
        segments_predicted: Such events of the simulator.
        segments_matched: Those which agree in place and size.
        final_layout_equal: Whether every segment and block at the end has the recorded address, size and state; None when
            the record has no layout.
        allocated_recorded: Peak of live blocks by the requests' rounded sizes: a history does not hold the sizes of blocks.
        mismatches: The first wrong predictions, in words.
    """

    events: int = 0
    allocations: int = 0
    address_matches: int = 0
    segments_recorded: int = 0
    segments_predicted: int = 0
    segments_matched: int = 0
    final_layout_equal: bool | None = None
    allocated_recorded: int = 0
    allocated_simulated: int = 0
    reserved_recorded: int = 0
    reserved_simulated: int = 0
    starts_cold: bool = True
    settings: str = "default"
    mismatches: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `vramcast replay`."""
        return {
            "events": self.events,
            "allocations": self.allocations,
            "address_matches": self.address_matches,
            "segments_recorded": self.segments_recorded,
            "segments_predicted": self.segments_predicted,
            "segments_matched": self.segments_matched,
            "final_layout_equal": self.final_layout_equal,
            "peaks": {
                "allocated": {"recorded": self.allocated_recorded, "simulated": self.allocated_simulated},
                "reserved": {"recorded": self.reserved_recorded, "simulated": self.reserved_simulated},
            },
            "starts_cold": self.starts_cold,
            "settings": self.settings,
            "mismatches": list(self.mismatches),
        }

    @property
    def exact(self) -> bool:
        """Whether nothing was predicted wrongly."""
        return (
            self.address_matches == self.allocations
            and self.segments_matched == self.segments_recorded == self.segments_predicted
            and self.final_layout_equal is not False
        )


def replay(trace: Trace, settings: Settings | None = None) -> Replay:
    """Return how the simulator predicts the history in `trace`.

    Args:
        trace: From a recorded snapshot, or any trace with addresses and segment events.
        settings: Of the recorded process; default: what the record says of them.
    Raises:
        UsageError: The trace has no segment events and no layout: there is nothing to compare with.
    """
    if len(trace) and not trace.is_segment_event().any() and trace.segments is None:
        raise UsageError(
            "The trace has neither segment events nor a final layout: only what an allocator recorded can be replayed."
        )
    return _Player(trace, settings or recorded_settings(trace)).run()


def recorded_settings(trace: Trace) -> Settings:
    """Return the settings under which a history was recorded, as far as the record says; else torch's defaults."""
    known = trace.header.get("allocator_settings")
    if not isinstance(known, dict):
        return Settings()
    split = known.get("max_split_size")
    divisions = known.get("roundup_power2_divisions")
    text = known.get("PYTORCH_CUDA_ALLOC_CONF")
    rules = AllocatorRules.of(str(trace.header.get("torch") or ""))
    settings = Settings.parse(text if isinstance(text, str) else "", rules)
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
        self._allocator = RecordedAllocator(settings, self._card, listener=self._listen, waits=True)
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
        found.allocated_recorded, found.reserved_recorded = allocated, reserved
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
            found.allocated_recorded = max(found.allocated_recorded, allocated)
            found.reserved_recorded = max(found.reserved_recorded, reserved)
        statistics = self._allocator.statistics
        found.allocated_simulated, found.reserved_simulated = statistics.allocated.peak, statistics.reserved.peak
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
                self._tell(f"a segment of {size_bytes} B at {address:#x} is predicted, the record has none there")
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
            self._tell(f"{size_bytes} B are predicted at {block.address:#x}, the record has {address:#x}")
            moved = self._allocator.move(block, address)
            if moved is None:
                return  # nothing is free there: the record contradicts itself, or the start was not known well enough
            block = moved
        self._live[address] = block

    def _take_over_segments(self) -> None:
        """Take segments which the record has and the simulator did not ask for."""
        for address, size_bytes in self._card.segments:
            self._tell(f"a segment of {size_bytes} B at {address:#x} is in the record, and not predicted")
        self._card.segments.clear()

    def _free(self, address: int) -> None:
        block = self._live.get(address)
        if block is None:
            return
        # Until the record says that it is complete, as if another stream still used it.
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
                self._tell(f"the segment at {address:#x} goes back, but is predicted to be in use")
            return
        # Which pages of a range go back is the allocator's choice, and predicted; when, is not.
        found.segments_recorded += 1
        self._predicted.clear()
        self._allocator.unmap_at(address)
        found.segments_predicted += len(self._predicted)
        if (action, address, size_bytes) in self._predicted:
            found.segments_matched += 1
        else:
            self._tell(f"{size_bytes} B at {address:#x} are unmapped, predicted is {self._predicted}")

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
