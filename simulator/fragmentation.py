"""Fragmentation at one moment of a trace: every segment, its blocks, and the blocks that keep it from being released.

The driver gets memory back in units: a whole segment, or a page of an expandable one. A unit without a live block is
released when memory runs short. The free bytes of any other unit are pinned until the last of its blocks is freed:

    segment of 20 MiB   ##aaaa.....ccc......      pinned: the 11 MiB marked "."
      # a parameter, which outlives the trace     it keeps the segment longest: all 11 MiB are attributed to it
      a, c activations, freed a little later      freed earlier: nothing is attributed to them

So pinned bytes are attributed to the block that ends last. If several end last (all that outlive the trace end together),
they share the bytes equally; the remainder goes, one byte each, to the blocks at the lowest addresses. The parts add up to
the total.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.core.plain import to_plain
from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.simulator.replay import recorded_settings
from vramcast.simulator.rules import SMALL_BYTES, SMALL_SEGMENT_BYTES
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.trace import Action, BlockState, Category, Phase, Trace, place, step_number

OLDER: Final = "older than the trace"  # the name of blocks without an ALLOC in the trace
_TOP: Final = 10  # arbitrary: rows of a table
_NAME_LIMIT: Final = 48  # arbitrary: characters kept from the end of a module's path
_SAID_OF_SEGMENTS: Final = (
    *("address", "size_bytes", "is_expandable", "live_bytes", "free_bytes", "pinned_bytes", "largest_free_bytes", "blocks"),
)

_Int64: TypeAlias = npt.NDArray[np.int64]


@brief
@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A live block.

    Attributes:
        size_bytes: Its request, rounded as the allocator rounds it.
        pinned_bytes: Free bytes attributed to it because it is the last to pin them.
        op: Operator that allocated it; None if unknown, as for module, step and phase.
        step: Counted from 1, and 0 before the first; None if the block is older than the trace.
        phase: Phase of the allocation; None if the block is older than the trace.
        end_row: Row at which its memory is free; None: it outlives the trace.
    """

    address: int
    size_bytes: int
    pinned_bytes: int
    op: str | None
    module: str | None
    category: str
    step: int | None
    phase: str | None
    end_row: int | None

    @property
    def is_older(self) -> bool:
        """Return whether the block is older than the trace."""
        return self.phase is None


@brief
@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A segment, or a mapped range of an expandable one, with its live blocks by address.

    Attributes:
        pinned_bytes: Free bytes that cannot be released while its blocks live.
        largest_free_bytes: Longest stretch without a live block.
    """

    address: int
    size_bytes: int
    is_expandable: bool
    pinned_bytes: int
    largest_free_bytes: int
    blocks: tuple[HeldBlock, ...]

    @property
    def live_bytes(self) -> int:
        """Return the bytes of its live blocks."""
        return sum(block.size_bytes for block in self.blocks)

    @property
    def free_bytes(self) -> int:
        """Return all its other bytes."""
        return self.size_bytes - self.live_bytes


@brief
@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The segments right after event `row` of `trace`, and the blocks that pin them; sizes in bytes.

    Attributes:
        segments: By address.
        outside_bytes: Live blocks outside all segments (a history whose beginning is lost); counted nowhere else.
    """

    trace: Trace
    row: int
    segments: tuple[HeldSegment, ...]
    outside_bytes: int

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def live_bytes(self) -> int:
        """Return the bytes of all live blocks in the segments."""
        return sum(segment.live_bytes for segment in self.segments)

    @property
    def free_bytes(self) -> int:
        """Return the reserved bytes without a live block."""
        return self.reserved_bytes - self.live_bytes

    @property
    def free_share(self) -> float:
        """Return the share of reserved bytes without a live block, from 0 to 1."""
        return self.free_bytes / self.reserved_bytes if self.reserved_bytes else 0.0

    @property
    def pinned_bytes(self) -> int:
        """Return the free bytes that cannot be released because of a live block in the same unit."""
        return sum(segment.pinned_bytes for segment in self.segments)

    @property
    def n_free_segments(self) -> int:
        """Return the number of segments without a live block."""
        return sum(not segment.blocks for segment in self.segments)

    @property
    def by_module(self) -> dict[str, int]:
        """Return pinned bytes by the module whose blocks pin them, largest first; "" is outside all modules."""
        return self._by("module")

    @property
    def by_op(self) -> dict[str, int]:
        """Return pinned bytes by the operator whose blocks pin them, largest first; "" is unknown."""
        return self._by("op")

    def _by(self, name: str) -> dict[str, int]:
        totals: dict[str, int] = {}
        for block in (block for segment in self.segments for block in segment.blocks if block.pinned_bytes):
            key = OLDER if block.is_older else getattr(block, name) or ""
            totals[key] = totals.get(key, 0) + block.pinned_bytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON, with every segment and block; unknown values are None."""
        return {
            "row": self.row,
            "place": self._place,
            "reserved_bytes": self.reserved_bytes,
            "live_bytes": self.live_bytes,
            "free_bytes": self.free_bytes,
            "free_share": self.free_share,
            "pinned_bytes": self.pinned_bytes,
            "free_segments": self.n_free_segments,
            "outside_bytes": self.outside_bytes,
            "by_module": self.by_module,
            "by_op": self.by_op,
            "segments": [{name: to_plain(getattr(segment, name)) for name in _SAID_OF_SEGMENTS} for segment in self.segments],
        }

    @property
    def _place(self) -> str:
        return place(self.trace, self.row, _NAME_LIMIT) if self.row >= 0 else "before the first event"

    def __str__(self) -> str:
        returnable_bytes = self.free_bytes - self.pinned_bytes
        lines = [
            f"fragmentation at row {self.row:,}: {self._place}",
            f"{'reserved':<14}{gib(self.reserved_bytes):>11}   {len(self.segments):,} segments",
            f"{'live':<14}{gib(self.live_bytes):>11}",
            f"{'free':<14}{gib(self.free_bytes):>11}   {self.free_share:.0%} of reserved",
            f"{'  pinned':<14}{gib(self.pinned_bytes):>11}   kept by live blocks in the same unit",
            f"{'  not pinned':<14}{gib(returnable_bytes):>11}   released when memory runs short; "
            f"{self.n_free_segments:,} segments without blocks",
        ]
        if self.outside_bytes:
            lines.append(f"{'outside':<14}{gib(self.outside_bytes):>11}   live blocks in segments unknown to the trace")
        pinning = sorted((s for s in self.segments if s.pinned_bytes), key=lambda s: (-s.pinned_bytes, s.address))
        if pinning:
            lines += ["", f"{'pinned':>11} {'of segment':>11} {'largest free':>12} {'blocks':>6}   mostly kept by"]
            for segment in pinning[:_TOP]:
                keeper = max(segment.blocks, key=lambda block: block.pinned_bytes)
                lines.append(
                    f"{gib(segment.pinned_bytes):>11} {gib(segment.size_bytes):>11} {gib(segment.largest_free_bytes):>12} "
                    f"{len(segment.blocks):>6}   {_words(keeper)}"
                )
        for name, totals in (("module", self.by_module), ("operator", self.by_op)):
            if totals:
                lines += ["", f"{'pinned':>11}   {name}"]
                lines += [
                    f"{gib(size):>11}   {printable(key, _NAME_LIMIT) or '-'}" for key, size in list(totals.items())[:_TOP]
                ]
        return "\n".join(lines)


def _words(block: HeldBlock) -> str:
    """Return a description of the block."""
    if block.is_older:
        return f"{gib(block.size_bytes)} {OLDER}"
    when = f"step {block.step} {block.phase}" if block.step else str(block.phase)
    names = [printable(name, _NAME_LIMIT) for name in (block.module, block.op) if name]
    return ", ".join([f"{gib(block.size_bytes)} {block.category} of {when}", *names])


def fragmentation(trace: Trace, row: int | None = None) -> Fragmentation:
    """Return the segments held right after event `row`, and the blocks that pin them.

    A block is its rounded request: bytes behind it that the allocator did not split off count as free, and pinned. CUDA
    graphs' private pools are released by rules of their own, which are not followed here.

    Args:
        trace: A trace with addresses and segment events: a recorded one or `simulate(...).replayed()`. Segments and blocks
            older than its first row are those that it frees later or still has in its final layout.
        row: -1 is before the first event. Default: the first block that begins while the most memory is reserved; the last
            segment was allocated for it, because no free block fitted. In a trace without segment events, the end.

    Returns:
        The segments, their blocks, and the bytes that each block pins; `str` of it is a table.

    Raises:
        UsageError: The trace has no segments or no addresses, no such row, or two live blocks in one place.

    Example:
        >>> pinned = vramcast.fragmentation(recorded)
        >>> pinned.live_bytes + pinned.free_bytes == pinned.reserved_bytes
        True
    """
    if trace.segments is None and not trace.is_segment_event().any():
        raise UsageError("The trace has no segments: use simulate(trace).replayed(), which has them.")
    settings = _settings(trace)
    row = _default_row(trace) if row is None else row
    live = trace.live_at(row)
    spans, blocks = _Spans.at(trace, row), _LiveBlocks.at(trace, row, live, settings)
    segment = np.searchsorted(spans.start, blocks.start, side="right") - 1
    inside = segment >= 0
    inside[inside] = blocks.end[inside] <= spans.end[segment[inside]]
    outside_bytes = int(blocks.size_bytes[~inside].sum())
    if len(blocks.start) and not inside.any():
        raise UsageError("No live block lies in a segment of the trace: use simulate(trace).replayed(), which has addresses.")
    blocks, segment = blocks.take(inside), segment[inside]
    overlaps = np.flatnonzero(blocks.start[1:] < blocks.end[:-1])
    if len(overlaps):
        address = int(blocks.start[overlaps[0] + 1])
        raise UsageError(f"Two blocks live at {address:#x} after row {row}: the history has gaps; record it again.")
    pinned_of_segment, pinned_of_block = _pinned(spans, blocks, segment, settings)
    return Fragmentation(
        trace, row, tuple(_segments(trace, spans, blocks, segment, pinned_of_segment, pinned_of_block)), outside_bytes
    )


def _settings(trace: Trace) -> Settings:
    """Return the settings that the trace's addresses were made under."""
    simulated = trace.header.get("simulated")
    if isinstance(simulated, dict) and isinstance(simulated.get("settings"), str):
        return Settings() if simulated["settings"] == str(Settings()) else Settings.parse(simulated["settings"])
    return recorded_settings(trace)


def _default_row(trace: Trace) -> int:
    if not trace.is_segment_event().any():
        return len(trace) - 1
    reserved = trace.reserved_bytes()
    most = reserved == reserved.max()
    begins = most & (trace.action == Action.ALLOC)
    return int(np.argmax(begins if begins.any() else most))


@dataclass(frozen=True, slots=True)
class _Spans:
    """Held segments by address, one per row; mapped ranges that touch are one."""

    start: _Int64
    end: _Int64
    is_expandable: npt.NDArray[np.bool_]

    @classmethod
    def at(cls, trace: Trace, row: int) -> _Spans:
        """Return the ranges held right after event `row`.

        Every address is painted with all that is known of it, and the last layer counts. The layers are the final layout;
        then the events after `row`, in reverse (memory released later is held now); then the events up to `row`.
        """
        rows = np.flatnonzero(trace.is_segment_event())
        before, after = rows[rows <= row], rows[rows > row][::-1]
        events = np.concatenate([after, before])
        action, start, size_bytes, stream = (c[events] for c in (trace.action, trace.address, trace.size_bytes, trace.stream))
        is_gain = np.isin(action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
        is_held = is_gain == (events <= row)
        is_mapped = np.isin(action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP))
        start = start.astype(np.int64)
        if trace.segments is not None:
            end_layout = trace.segments
            start = np.concatenate([end_layout.address.astype(np.int64), start])
            size_bytes = np.concatenate([end_layout.total_size, size_bytes])
            stream = np.concatenate([end_layout.stream, stream])
            is_held = np.concatenate([np.ones(len(end_layout.address), np.bool_), is_held])
            is_mapped = np.concatenate([end_layout.is_expandable, is_mapped])
        edges = np.unique(np.concatenate([start, start + size_bytes]))
        painted = np.full(len(edges), -1)  # last event to paint each stretch between two edges; -1: not held
        firsts, ends = np.searchsorted(edges, start).tolist(), np.searchsorted(edges, start + size_bytes).tolist()
        for number, (first, end, held) in enumerate(zip(firsts, ends, is_held.tolist(), strict=True)):
            painted[first:end] = number if held else -1
        # Pages of one stream that touch belong to one range, no matter which event painted them.
        kind = np.where((painted >= 0) & is_mapped[painted], -2 - stream[painted], painted) if len(edges) else painted
        turns = np.flatnonzero(np.diff(kind, prepend=-1))
        following = np.append(turns, len(edges))[1:]
        kept = painted[turns] >= 0  # never the last one: nothing is held beyond the last edge
        return cls(edges[turns[kept]], edges[following[kept]], is_mapped[painted[turns[kept]]])


@dataclass(frozen=True, slots=True)
class _LiveBlocks:
    """Live blocks by address, one per row: `begin` is the row of the ALLOC, -1 before the trace; `over` the row that frees
    it.
    """

    start: _Int64
    size_bytes: _Int64
    begin: _Int64
    over: _Int64

    @property
    def end(self) -> _Int64:
        return self.start + self.size_bytes

    @classmethod
    def at(cls, trace: Trace, row: int, live: _Int64, settings: Settings) -> _LiveBlocks:
        """Return the blocks that live right after event `row`; `live` are those that begin in the trace."""
        n = len(trace)
        completed = trace.action == Action.FREE_COMPLETED
        # A block is older if the trace frees it, or holds it at the end, without its ALLOC.
        older = np.flatnonzero(completed & (trace.block < 0))
        older = older[np.unique(trace.address[older], return_index=True)[1]]
        later = older[older > row]
        parts = [(trace.address[live], trace.size_bytes[live], live, trace.ends()[live])]
        parts.append((trace.address[later], trace.size_bytes[later], np.full(len(later), -1), later))
        if trace.blocks is not None:
            named = np.concatenate([trace.address[trace.live_at(n - 1)], trace.address[older]])
            kept = (trace.blocks.state != BlockState.INACTIVE) & ~np.isin(trace.blocks.address, named)
            n_kept = int(kept.sum())
            at_end = (trace.blocks.address[kept], trace.blocks.requested_bytes[kept])
            parts.append((*at_end, np.full(n_kept, -1), np.full(n_kept, n)))
        start, requested, begin, over = (np.concatenate(columns).astype(np.int64) for columns in zip(*parts, strict=True))
        sizes, which = np.unique(requested, return_inverse=True)
        size_bytes = np.array([settings.round_bytes(size) for size in sizes.tolist()], np.int64)[which]
        return cls(start, size_bytes, begin, over).take(np.argsort(start, kind="stable"))

    def take(self, which: npt.NDArray[Any]) -> _LiveBlocks:
        return _LiveBlocks(self.start[which], self.size_bytes[which], self.begin[which], self.over[which])


def _pinned(spans: _Spans, blocks: _LiveBlocks, segment: _Int64, settings: Settings) -> tuple[_Int64, _Int64]:
    """Return the pinned bytes of each segment, and those attributed to each block."""
    largest = np.zeros(len(spans.start), np.int64)
    np.maximum.at(largest, segment, blocks.size_bytes)
    pages = np.where(largest > SMALL_BYTES, settings.large_segment_bytes, SMALL_SEGMENT_BYTES)
    unit_bytes = np.where(spans.is_expandable, pages, spans.end - spans.start)
    n_units = -(-(spans.end - spans.start) // unit_bytes)
    before = np.cumsum(n_units) - n_units  # units of all segments below each
    first = (blocks.start - spans.start[segment]) // unit_bytes[segment]
    last = (blocks.end - 1 - spans.start[segment]) // unit_bytes[segment]
    # A block fills all units that it touches, except its first and its last.
    longer = np.flatnonzero(last > first)
    block = np.concatenate([np.arange(len(first)), longer])
    number = np.concatenate([first, last[longer]])
    of = segment[block]
    start = spans.start[of] + number * unit_bytes[of]
    end = np.minimum(start + unit_bytes[of], spans.end[of])
    live_bytes = np.minimum(blocks.end[block], end) - np.maximum(blocks.start[block], start)
    _, example, unit = np.unique(number + before[of], return_index=True, return_inverse=True)
    pinned = (end - start)[example]
    np.subtract.at(pinned, unit, live_bytes)
    over = np.zeros(len(pinned), np.int64)
    np.maximum.at(over, unit, blocks.over[block])
    keepers = np.flatnonzero(blocks.over[block] == over[unit])
    keepers = keepers[np.lexsort((block[keepers], unit[keepers]))]
    count = np.bincount(unit[keepers], minlength=len(pinned))
    rank = np.arange(len(keepers)) - (np.cumsum(count) - count)[unit[keepers]]
    share, rest = np.divmod(pinned, count)
    of_block = np.zeros(len(first), np.int64)
    np.add.at(of_block, block[keepers], share[unit[keepers]] + (rank < rest[unit[keepers]]))
    of_segment = np.zeros(len(spans.start), np.int64)
    np.add.at(of_segment, of[example], pinned)
    return of_segment, of_block


def _segments(
    trace: Trace, spans: _Spans, blocks: _LiveBlocks, segment: _Int64, pinned_of_segment: _Int64, pinned_of_block: _Int64
) -> list[HeldSegment]:
    held = _held_blocks(trace, blocks, pinned_of_block)
    bounds = np.searchsorted(segment, np.arange(len(spans.start) + 1)).tolist()
    reached = spans.start.copy()  # end of the last block in each segment
    np.maximum.at(reached, segment, blocks.end)
    largest = spans.end - reached
    is_first = np.diff(segment, prepend=-1) > 0
    gaps = blocks.start - np.where(is_first, spans.start[segment], np.roll(blocks.end, 1))
    np.maximum.at(largest, segment, gaps)
    held_in = [tuple(held[first:end]) for first, end in pairwise(bounds)]
    columns = (spans.start, spans.end - spans.start, spans.is_expandable, pinned_of_segment, largest)
    return [HeldSegment(*row) for row in zip(*(column.tolist() for column in columns), held_in, strict=True)]


def _held_blocks(trace: Trace, blocks: _LiveBlocks, pinned: _Int64) -> list[HeldBlock]:
    categories = [category.name.lower() for category in Category]
    phases = [phase.name.lower() for phase in Phase]
    ops, modules = [*trace.ops, None], [*trace.modules, None]  # the last for -1
    begun = blocks.begin[blocks.begin >= 0]
    columns = (trace.op, trace.module, trace.category, trace.step, trace.phase)
    rows = zip(begun.tolist(), *(column[begun].tolist() for column in columns), strict=True)
    said = {
        begin: (ops[op], modules[module], categories[category], step_number(step), phases[phase])
        for begin, op, module, category, step, phase in rows
    }
    older = (None, None, categories[Category.UNKNOWN], None, None)
    held = []
    facts = (blocks.start, blocks.size_bytes, pinned, blocks.begin, blocks.over)
    for address, size_bytes, pinned_bytes, begin, over in zip(*(column.tolist() for column in facts), strict=True):
        op, module, category, step, phase = said.get(begin, older)
        end_row = over if over < len(trace) else None
        held.append(HeldBlock(address, size_bytes, pinned_bytes, op, module, category, step, phase, end_row))
    return held
