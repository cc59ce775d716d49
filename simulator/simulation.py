"""Simulation of a trace under other conditions: the same requests, with other allocator settings or another card.

    simulate(trace, Settings.parse("expandable_segments:True"), Card(total_bytes=12 << 30, context_bytes=500 << 20))

Limit: the requests are those of the trace. If the workspace of a convolution does not fit, the job continues with cuDNN's
next plan; the workspace of that plan is not in the trace and assumed to be empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief
from vramcast.simulator.card import Card
from vramcast.simulator.engine import Engine, play
from vramcast.simulator.outcome import Outcome
from vramcast.simulator.requests import RequestKind, Requests
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
    step_number,
)

_ACTIONS = {
    RequestKind.MALLOC: Action.ALLOC,
    RequestKind.TRY: Action.ALLOC,
    RequestKind.FREE: Action.FREE_REQUESTED,
    RequestKind.RETIRE: Action.FREE_REQUESTED,
    RequestKind.COMPLETE: Action.FREE_COMPLETED,
    RequestKind.EMPTY: Action.EMPTY_CACHE,
    RequestKind.TAKE: Action.CONTEXT,
}
_SAID_OF_ROWS = ("step", "phase", "operator", "category", "time_us")


@brief
@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The end of a job: the request that the card cannot serve."""

    row: int  # of the simulated trace
    size_bytes: int
    step: int  # counted from 1; 0 before the first
    phase: str
    op: str | None
    module: str | None

    @property
    def place(self) -> str:
        """The place in the job, in words: step, phase, module, operator."""
        when = f"step {self.step}" if self.step else "before step 1"
        return ", ".join(filter(None, (when, self.phase, self.module, self.op)))


@brief
@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """The outcome of a trace's requests.

    Attributes:
        trace: The simulated trace.
        out_of_memory: Where the job ends; None: it runs to its end.
    """

    trace: Trace
    settings: Settings
    card: Card
    requests: Requests
    outcome: Outcome

    @property
    def allocated(self) -> int:
        """Return the peak of live blocks in bytes, as in `torch.cuda.max_memory_allocated()`."""
        return self.outcome.statistics.allocated.peak

    @property
    def reserved(self) -> int:
        """Return the peak of segments in bytes, as in `torch.cuda.max_memory_reserved()`."""
        return self.outcome.statistics.reserved.peak

    @property
    def retries(self) -> int:
        """Return how often the allocator released all unused segments and retried."""
        return self.outcome.statistics.n_retries

    @property
    def fits(self) -> bool:
        """Return whether the job runs to its end."""
        return self.outcome.stopped_at is None

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """Return where the job ends; None if it runs to its end."""
        if self.outcome.stopped_at is None:
            return None
        trace, row = self.trace, int(self.requests.source[self.outcome.stopped_at])
        if row < 0:  # a block older than the trace
            size_bytes = int(self.requests.size_bytes[self.outcome.stopped_at])
            return OutOfMemory(row, size_bytes, 0, Phase.BUILD.name.lower(), None, None)
        operator = trace.operator_at(row)
        return OutOfMemory(
            row,
            int(trace.size_bytes[row]),
            step_number(int(trace.step[row])),
            Phase(trace.phase[row]).name.lower(),
            operator.name or None,
            operator.module or None,
        )

    def replayed(self) -> Trace:
        """Return the trace as it would have been recorded: its requests, with the simulated addresses and segments.

        It ends where memory runs out. Blocks older than the trace become its first rows.
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
    """Play the requests of `trace` under `settings` on `card`.

    Args:
        trace: A job's trace.
        settings: Allocator settings; default: torch's.
        card: A fresh card; default: an unlimited one.
        requests: The requests of the trace, if it is simulated many times; default: taken from the trace.
        columns: Whether `replayed` will be used; if not, a simulation takes half the time.
        engine: `auto` is `compiled` if there is a C compiler, otherwise `python`, which is a hundred times slower.

    Returns:
        The outcome: peaks in bytes, retries, and the request at which memory runs out, if any.

    Raises:
        CompilerError: The engine is `compiled`, and the compiled allocator is not available here.
        UsageError: The trace has more streams than the simulator supports.

    Example:
        >>> found = vramcast.simulate(small, card=vramcast.Card(1 << 30))
        >>> found.fits, found.allocated, found.reserved
        (True, 4096, 2097152)
    """
    settings, card = settings or Settings(), card or Card()
    asked = Requests.of(trace) if requests is None else requests
    return Simulation(trace, settings, card, asked, play(asked, settings, card, columns=columns, engine=engine))


def retrace(trace: Trace, requests: Requests, outcome: Outcome, settings: Settings, header: dict[str, Any]) -> Trace:
    """Return the trace of `requests` with the rows, addresses, segments and final layout of `outcome`.

    Args:
        trace: The trace that the requests come from; its facts about its rows are kept, its peaks are not.
        requests: Requests without private pools, which a trace cannot show.
        outcome: An outcome with columns.
        settings: The settings that the requests were played under.
        header: Facts to add.
    """
    assert outcome.address is not None
    n = len(requests) if outcome.stopped_at is None else outcome.stopped_at
    kind, source = requests.kind[:n], requests.source[:n]
    asks = (kind == RequestKind.MALLOC) | (kind == RequestKind.TRY)
    block = np.where(asks, np.arange(n), requests.block[:n])
    # A request makes one row and a FREE two. A request that failed, or that refers to a failed one, makes none.
    served = (block < 0) | (outcome.address[block] >= 0)
    n_rows = np.where(kind == RequestKind.FREE, 2, 1) * served
    # Segment events caused by an allocation come before its row; those caused by other requests come after.
    events = outcome.events
    causes = np.minimum(events["request"], n)
    n_events = np.bincount(causes, minlength=n + 1)
    first = np.concatenate([[0], np.cumsum(n_rows + n_events[:n])])  # first row of each request, including its events
    row = first[:n] + asks * n_events[:n]
    length = int(first[n] + n_events[n])
    unknown = {"block": -1, **EVENT_DEFAULTS}
    columns: dict[str, npt.NDArray[Any]] = {k: np.full(length, unknown.get(k, 0), dtype) for k, dtype in EVENT_COLUMNS.items()}
    for offset, mask in ((0, served), (1, served & (kind == RequestKind.FREE))):
        at, about = row[mask] + offset, block[mask]
        actions = np.array([_ACTIONS.get(RequestKind(k), Action.SNAPSHOT) for k in kind[mask].tolist()], np.uint8)
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
    """Copy the trace's facts about its rows `source` to `rows`, where they are known."""
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
    # Whether a block still waits for another stream at the end; a retry at the last request may have ended that.
    waits_at_end = outcome.statistics.active.current > outcome.statistics.allocated.current
    waits = np.append(outcome.active_bytes[:n] > outcome.allocated_bytes[:n], waits_at_end).tolist()
    for row, (kind, block) in enumerate(zip(requests.kind[:n].tolist(), requests.block[:n].tolist(), strict=True)):
        if kind in (RequestKind.MALLOC, RequestKind.TRY):
            if outcome.block_bytes[row] > 0:
                state[row] = BlockState.ACTIVE_ALLOCATED
        elif kind == RequestKind.RETIRE and block in state:
            state[block] = BlockState.ACTIVE_PENDING_FREE
            waiting.add(block)
        elif kind in (RequestKind.FREE, RequestKind.COMPLETE):
            state.pop(block, None)
        if waiting and not (waits[row] and waits[n]):  # the job or a retry emptied the cache
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
    """Return (address, bytes, stream, whether of a large pool) of each range held after `events`, by address.

    Args:
        events: Of an outcome.
        is_large: For each request, whether a large pool serves it.
    Returns:
        A row per segment, or per mapped range of an expandable one.
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
    """Add a range, and merge it with the ranges that it touches."""
    for address, (size_bytes, *owner) in list(held.items()):
        if address + size_bytes == start and tuple(owner) == kind:
            del held[address]
            start = address
    if end in held and held[end][1:] == kind:
        end += held.pop(end)[0]
    held[start] = (end - start, *kind)


def _unmap(held: dict[int, tuple[int, int, bool]], start: int, end: int) -> None:
    """Cut a range out of the range that contains it."""
    address = max(begin for begin in held if begin <= start)
    size_bytes, stream, is_large = held.pop(address)
    if address < start:
        held[address] = (start - address, stream, is_large)
    if end < address + size_bytes:
        held[end] = (address + size_bytes - end, stream, is_large)
