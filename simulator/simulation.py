"""A trace under other circumstances: the same requests, other settings of the allocator or another card.

    simulate(trace, Settings.parse("expandable_segments:True"), Card(total_bytes=12 << 30, context_bytes=500 << 20))

Limit: the requests are those of the trace. A job which cannot have the workspace of a convolution goes on with cuDNN's next
plan; what that one asks for is not in the trace, and taken to be nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vramcast.simulator.card import Card
from vramcast.simulator.engine import Engine, play
from vramcast.simulator.outcome import Outcome
from vramcast.simulator.requests import Kind, Requests
from vramcast.simulator.rules import SMALL_BYTES
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.trace import (
    BLOCK_COLUMNS,
    EVENT_COLUMNS,
    EVENT_DEFAULTS,
    SEGMENT_COLUMNS,
    Action,
    BlockState,
    Phase,
    Trace,
    columns_of,
)

_ACTIONS = {
    Kind.MALLOC: Action.ALLOC,
    Kind.TRY: Action.ALLOC,
    Kind.FREE: Action.FREE_REQUESTED,
    Kind.RETIRE: Action.FREE_REQUESTED,
    Kind.COMPLETE: Action.FREE_COMPLETED,
    Kind.EMPTY: Action.EMPTY_CACHE,
    Kind.TAKE: Action.CONTEXT,
}
_SAID_OF_ROWS = ("step", "phase", "operator", "category", "time_us")


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Where a job ends: the request which the card cannot serve."""

    row: int  # of the trace which was simulated
    size_bytes: int
    step: int
    phase: str
    op: str | None
    module: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """What became of a trace's requests.

    Attributes:
        trace: The trace which was simulated.
        out_of_memory: Where the job ends; None: it runs to its end.
    """

    trace: Trace
    settings: Settings
    card: Card
    requests: Requests
    outcome: Outcome

    @property
    def allocated(self) -> int:
        """Peak of live blocks in bytes, as `torch.cuda.max_memory_allocated()` would say."""
        return self.outcome.statistics.allocated.peak

    @property
    def reserved(self) -> int:
        """Peak of segments in bytes, as `torch.cuda.max_memory_reserved()` would say."""
        return self.outcome.statistics.reserved.peak

    @property
    def retries(self) -> int:
        """How often the allocator gave everything back and asked the driver again."""
        return self.outcome.statistics.n_retries

    @property
    def fits(self) -> bool:
        """Whether the job runs to its end."""
        return self.outcome.stopped_at is None

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """Where the job ends; None when it does not."""
        if self.outcome.stopped_at is None:
            return None
        trace, row = self.trace, int(self.requests.source[self.outcome.stopped_at])
        if row < 0:  # a block which is older than the trace
            size_bytes = int(self.requests.size_bytes[self.outcome.stopped_at])
            return OutOfMemory(row, size_bytes, -1, Phase.BUILD.name.lower(), None, None)
        operator = trace.operator_at(row)
        return OutOfMemory(
            row,
            int(trace.size_bytes[row]),
            int(trace.step[row]),
            Phase(trace.phase[row]).name.lower(),
            operator.name or None,
            operator.module or None,
        )

    def replayed(self) -> Trace:
        """Return the trace as it would have been recorded: its requests, the simulated addresses and segments.

        It ends where memory runs out. Blocks which are older than the trace become its first rows.
        """
        said = {name: getattr(self.card, name) for name in ("total_bytes", "context_bytes", "limited")}
        header = {"simulated": {"settings": str(self.settings), **said}}
        return retrace(self.trace, self.requests, self.outcome, self.settings, header)


def simulate(
    trace: Trace,
    settings: Settings | None = None,
    card: Card | None = None,
    *,
    requests: Requests | None = None,
    columns: bool = True,
    engine: Engine = "auto",
) -> Simulation:
    """Return what the requests of `trace` come to under `settings` on `card`.

    Args:
        trace: What was traced.
        settings: Of the allocator; default: torch's.
        card: A fresh card; default: an unlimited one.
        requests: Those of the trace, where they are simulated many times; default: taken from it.
        columns: Whether `replayed` is wanted; without, a simulation takes half the time.
        engine: See `vramcast.simulator.engine.play`.
    """
    settings, card = settings or Settings(), card or Card()
    asked = Requests.of(trace) if requests is None else requests
    return Simulation(trace, settings, card, asked, play(asked, settings, card, columns=columns, engine=engine))


def retrace(trace: Trace, requests: Requests, outcome: Outcome, settings: Settings, header: dict[str, Any]) -> Trace:
    """Return the trace of `requests` as `outcome` has it: their rows, the new addresses and segments, the final layout.

    Args:
        trace: Which the requests were taken from; what it says of its rows is kept, its peaks are not.
        requests: Without private pools, which a trace cannot show.
        outcome: With columns.
        settings: Under which they were played.
        header: Facts to add.
    """
    assert outcome.address is not None
    n = len(requests) if outcome.stopped_at is None else outcome.stopped_at
    kind, source = requests.kind[:n], requests.source[:n]
    asks = (kind == Kind.MALLOC) | (kind == Kind.TRY)
    block = np.where(asks, np.arange(n), requests.block[:n])
    # A request is one row, a FREE two, and one which could not be served or is about such a one none.
    served = (block < 0) | (outcome.address[block] >= 0)
    n_rows = np.where(kind == Kind.FREE, 2, 1) * served
    # The segment events which a request causes come before its row when it asks for memory, else after.
    events = outcome.events
    causes = np.minimum(events["request"], n)
    n_events = np.bincount(causes, minlength=n + 1)
    first = np.concatenate([[0], np.cumsum(n_rows + n_events[:n])])  # of each request, its events included
    row = first[:n] + asks * n_events[:n]
    length = int(first[n] + n_events[n])
    unknown = {"block": -1, **EVENT_DEFAULTS}
    columns: dict[str, npt.NDArray[Any]] = {k: np.full(length, unknown.get(k, 0), dtype) for k, dtype in EVENT_COLUMNS.items()}
    for offset, mask in ((0, served), (1, served & (kind == Kind.FREE))):
        at, about = row[mask] + offset, block[mask]
        actions = np.array([_ACTIONS.get(Kind(k), Action.SNAPSHOT) for k in kind[mask].tolist()], np.uint8)
        columns["action"][at] = Action.FREE_COMPLETED if offset else actions
        named = about >= 0
        columns["block"][at[named]] = row[about[named]]
        columns["address"][at[named]] = outcome.address[about[named]]
        columns["size_bytes"][at] = requests.size_bytes[np.where(named, about, np.flatnonzero(mask))]
        columns["stream"][at] = requests.stream[np.where(named, about, np.flatnonzero(mask))]
        _copy(trace, columns, at, source[mask], _SAID_OF_ROWS)

    rank = np.arange(len(events)) - np.searchsorted(causes, causes, side="left")
    at = first[causes] + np.append(np.where(asks, 0, n_rows), 0)[causes] + rank
    for name in ("action", "size_bytes", "stream"):
        columns[name][at] = events[name]
    columns["address"][at] = np.where(events["action"] == Action.OOM, 0, events["address"])
    stopped = requests.source[n] if n < len(requests) else -1
    _copy(trace, columns, at, np.append(source, stopped)[causes], ("step", "phase", "operator", "time_us"))
    segments, blocks = _layout(requests, outcome, settings, n)
    known = {key: value for key, value in trace.header.items() if key != "peaks"}
    free_bytes = events["address"][events["action"] == Action.OOM].tolist()
    return Trace.build(
        columns,
        operators=trace.operators,
        ledger=trace.ledger,
        header={**known, **header, "oom_device_free_bytes": free_bytes, "marks_empty_cache": True},
        stream_ids=trace.stream_ids,
        segments=segments,
        blocks=blocks,
    )


def _copy(
    trace: Trace,
    columns: dict[str, npt.NDArray[Any]],
    rows: npt.NDArray[Any],
    source: npt.NDArray[Any],
    names: tuple[str, ...],
) -> None:
    """Say of `rows` what the trace says of its rows `source`, where that is known."""
    known = source >= 0
    for name in names:
        columns[name][rows[known]] = getattr(trace, name)[source[known]]


def _layout(
    requests: Requests, outcome: Outcome, settings: Settings, n: int
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Return the columns of the final segments and blocks; free memory between two live blocks is one block."""
    assert outcome.address is not None
    assert outcome.block_bytes is not None
    assert outcome.allocated_bytes is not None
    assert outcome.active_bytes is not None
    state: dict[int, BlockState] = {}
    waiting: set[int] = set()
    # Whether a block still waits for another stream at the end; the last request's retry may have ended that.
    waits_at_end = outcome.statistics.active.current > outcome.statistics.allocated.current
    waits = np.append(outcome.active_bytes[:n] > outcome.allocated_bytes[:n], waits_at_end).tolist()
    for row, (kind, block) in enumerate(zip(requests.kind[:n].tolist(), requests.block[:n].tolist(), strict=True)):
        if kind in (Kind.MALLOC, Kind.TRY):
            if outcome.block_bytes[row] > 0:
                state[row] = BlockState.ACTIVE_ALLOCATED
        elif kind == Kind.RETIRE and block in state:
            state[block] = BlockState.ACTIVE_PENDING_FREE
            waiting.add(block)
        elif kind in (Kind.FREE, Kind.COMPLETE):
            state.pop(block, None)
        if waiting and not (waits[row] and waits[n]):  # the cache was emptied, by the job or by a retry
            for block in waiting & state.keys():
                del state[block]
            waiting.clear()
    live = sorted((int(outcome.address[block]), block) for block in state)
    is_large = np.array([settings.round_bytes(size) > SMALL_BYTES for size in requests.size_bytes.tolist()])
    ranges = held_ranges(outcome.events, is_large)
    segments: list[tuple[Any, ...]] = []
    blocks: list[tuple[Any, ...]] = []
    at = 0
    for number, (start, size_bytes, stream, of_large) in enumerate(ranges):
        end = start
        while at < len(live) and live[at][0] < start + size_bytes:
            address, block = live[at]
            if address > end:
                blocks.append((number, end, address - end, 0, BlockState.INACTIVE))
            block_bytes, requested_bytes = int(outcome.block_bytes[block]), int(requests.size_bytes[block])
            blocks.append((number, address, block_bytes, requested_bytes, state[block]))
            end = address + block_bytes
            at += 1
        if end < start + size_bytes:
            blocks.append((number, end, start + size_bytes - end, 0, BlockState.INACTIVE))
        segments.append((start, size_bytes, stream, of_large, settings.expandable_segments))
    return columns_of(segments, SEGMENT_COLUMNS), columns_of(blocks, BLOCK_COLUMNS)


def held_ranges(events: npt.NDArray[Any], is_large: npt.NDArray[np.bool_]) -> list[tuple[int, int, int, bool]]:
    """Return (address, bytes, stream, of a large pool) of what is held after `events`, by address.

    Args:
        events: Of an outcome.
        is_large: For each request whether a large pool serves it.
    Returns:
        A segment each, or with expandable segments a mapped range.
    """
    held: dict[int, tuple[int, int, bool]] = {}
    for action, request, address, size_bytes, stream in events.tolist():
        kind = (stream, bool(is_large[request]))
        if action == Action.SEGMENT_ALLOC:
            held[address] = (size_bytes, *kind)
        elif action == Action.SEGMENT_FREE:
            del held[address]
        elif action == Action.SEGMENT_MAP:
            _map(held, address, address + size_bytes, kind)
        elif action == Action.SEGMENT_UNMAP:
            _unmap(held, address, address + size_bytes)
    return [(address, *row) for address, row in sorted(held.items())]


def _map(held: dict[int, tuple[int, int, bool]], start: int, end: int, kind: tuple[int, bool]) -> None:
    """Add a range; one which it touches becomes one with it."""
    for address, (size_bytes, *owner) in list(held.items()):
        if address + size_bytes == start and tuple(owner) == kind:
            del held[address]
            start = address
    if end in held and held[end][1:] == kind:
        end += held.pop(end)[0]
    held[start] = (end - start, *kind)


def _unmap(held: dict[int, tuple[int, int, bool]], start: int, end: int) -> None:
    """Cut a range out of the one which holds it."""
    address = max(begin for begin in held if begin <= start)
    size_bytes, stream, is_large = held.pop(address)
    if address < start:
        held[address] = (start - address, stream, is_large)
    if end < address + size_bytes:
        held[end] = (address + size_bytes - end, stream, is_large)
