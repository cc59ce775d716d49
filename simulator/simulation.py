"""A trace under other circumstances: the same requests, other settings of the allocator or another card.

    simulate(trace, Settings.parse("expandable_segments:True"), Card(total_bytes=12 << 30, context_bytes=500 << 20))

Limit: the requests are those of the trace. A job which asks for less when memory runs short (PyTorch tries cuDNN's next plan
when the workspace of the first cannot be had) may run on less than is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vramcast.simulator.card import Card
from vramcast.simulator.outcome import Outcome
from vramcast.simulator.player import Engine, play
from vramcast.simulator.requests import Kind, Requests
from vramcast.simulator.settings import SMALL_BYTES, Settings
from vramcast.tracer.trace import EVENT_COLUMNS, Action, BlockState, Category, Phase, Trace


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
        op, module = int(trace.op[row]), int(trace.module[row])
        return OutOfMemory(
            row,
            int(trace.size_bytes[row]),
            int(trace.step[row]),
            Phase(trace.phase[row]).name.lower(),
            trace.ops[op] if op >= 0 else None,
            trace.modules[module] if module >= 0 else None,
        )

    def replayed(self) -> Trace:
        """Return the trace as it would have been recorded: its requests, the simulated addresses and segments.

        It ends where memory runs out. Blocks which are older than the trace become its first rows.
        """
        return _replayed(self)


def simulate(
    trace: Trace | Requests,
    settings: Settings | None = None,
    card: Card | None = None,
    *,
    of: Trace | None = None,
    columns: bool = True,
    engine: Engine = "auto",
) -> Simulation:
    """Return what the requests of `trace` come to under `settings` on `card`.

    Args:
        trace: What was traced, or its requests when they are simulated many times (then `of` is the trace).
        settings: Of the allocator; default: torch's.
        card: A fresh card; default: one without an end.
        of: The trace which `trace`, given as requests, was taken from.
        columns: Whether `replayed` is wanted; without, a simulation takes half the time.
        engine: See `vramcast.simulator.player.play`.
    """
    settings, card = settings or Settings(), card or Card()
    if isinstance(trace, Trace):
        of, requests = trace, Requests.of(trace)
    else:
        requests = trace
    assert of is not None
    return Simulation(of, settings, card, requests, play(requests, settings, card, columns=columns, engine=engine))


_ACTIONS = {Kind.MALLOC: Action.ALLOC, Kind.RETIRE: Action.FREE_REQUESTED, Kind.COMPLETE: Action.FREE_COMPLETED}


def _replayed(simulation: Simulation) -> Trace:
    trace, requests, outcome = simulation.trace, simulation.requests, simulation.outcome
    assert outcome.address is not None
    n = len(requests) if outcome.stopped_at is None else outcome.stopped_at
    kind = requests.kind[:n]
    # A request is one row, a FREE two; the segment events which it causes come before a MALLOC and after an EMPTY.
    n_rows = np.where(kind == Kind.FREE, 2, 1)
    events = outcome.events
    causes = np.minimum(events["request"], n)
    n_events = np.bincount(causes, minlength=n + 1)[: n + 1]
    first = np.concatenate([[0], np.cumsum(n_rows + n_events[:n])])  # of each request, its events included
    before = np.isin(kind, (Kind.MALLOC,)) * n_events[:n]
    row = first[:n] + before
    length = int(first[n] + n_events[n])
    columns: dict[str, Any] = {name: np.zeros(length, dtype) for name, dtype in EVENT_COLUMNS.items()}
    columns["block"][:] = -1
    for name, value in (("step", -1), ("phase", Phase.OTHER), ("op", -1), ("module", -1), ("category", Category.UNKNOWN)):
        columns[name][:] = value

    source = requests.source[:n]
    block = np.where(kind == Kind.MALLOC, np.arange(n), requests.block[:n])
    for offset, mask in ((0, np.ones(n, np.bool_)), (1, kind == Kind.FREE)):
        at, of_block, origin = row[mask] + offset, block[mask], source[mask]
        action = np.full(len(at), Action.FREE_COMPLETED if offset else Action.FREE_REQUESTED)
        if not offset:
            for which, value in (*_ACTIONS.items(), (Kind.EMPTY, Action.EMPTY_CACHE)):
                action[kind == which] = value
        columns["action"][at] = action
        about = of_block >= 0
        columns["block"][at[about]] = row[of_block[about]]
        columns["address"][at[about]] = outcome.address[of_block[about]]
        columns["size_bytes"][at[about]] = requests.size_bytes[of_block[about]]
        columns["stream"][at] = requests.stream[:n][mask]
        known = origin >= 0
        for name in ("step", "phase", "op", "module", "category", "time_us"):
            columns[name][at[known]] = getattr(trace, name)[origin[known]]

    rank = np.arange(len(events)) - np.searchsorted(causes, causes, side="left")
    after = np.zeros(n + 1, np.int64)
    after[:n] = np.where(kind == Kind.MALLOC, 0, n_rows)
    at = first[causes] + after[causes] + rank
    for name in ("action", "size_bytes", "stream"):
        columns[name][at] = events[name]
    columns["address"][at] = np.where(events["action"] == Action.OOM, 0, events["address"])
    origin = np.append(source, requests.source[n] if n < len(requests) else -1)[causes]
    for name in ("step", "phase", "op", "module", "time_us"):
        columns[name][at[origin >= 0]] = getattr(trace, name)[origin[origin >= 0]]
    segments, blocks = _layout(simulation, n)
    ooms = events["address"][events["action"] == Action.OOM]
    header = {
        **{key: value for key, value in trace.header.items() if key != "peaks"},
        "simulated": {
            "settings": str(simulation.settings),
            "total_bytes": simulation.card.total_bytes,
            "context_bytes": simulation.card.context_bytes,
            "limited": simulation.card.limited,
        },
        "oom_device_free_bytes": ooms.tolist(),
        "marks_empty_cache": True,
    }
    return Trace.build(
        columns,
        ops=trace.ops,
        modules=trace.modules,
        header=header,
        stream_ids=trace.stream_ids,
        segments=segments,
        blocks=blocks,
    )


def _layout(simulation: Simulation, n: int) -> tuple[dict[str, npt.ArrayLike], dict[str, npt.ArrayLike]]:
    """Return the columns of the final segments and blocks; free memory between two live blocks is one block."""
    requests, outcome = simulation.requests, simulation.outcome
    assert outcome.address is not None
    assert outcome.block_bytes is not None
    state = {}  # request -> BlockState
    for row, (kind, block) in enumerate(zip(requests.kind[:n].tolist(), requests.block[:n].tolist(), strict=True)):
        if kind == Kind.MALLOC:
            state[row] = BlockState.ACTIVE_ALLOCATED
        elif kind == Kind.RETIRE:
            state[block] = BlockState.ACTIVE_PENDING_FREE
        elif kind in (Kind.FREE, Kind.COMPLETE):
            state.pop(block, None)
        elif kind == Kind.EMPTY:
            state = {b: s for b, s in state.items() if s is not BlockState.ACTIVE_PENDING_FREE}
    live = sorted((int(outcome.address[block]), block) for block in state)
    is_large = np.array([simulation.settings.round_bytes(size) > SMALL_BYTES for size in requests.size_bytes.tolist()])
    ranges = held_ranges(outcome.events, is_large)
    segments: dict[str, list[Any]] = {name: [] for name in ("address", "total_size", "stream", "is_large", "is_expandable")}
    blocks: dict[str, list[Any]] = {name: [] for name in ("segment", "address", "size_bytes", "requested_bytes", "state")}

    def put(segment: int, address: int, size_bytes: int, requested_bytes: int, block_state: BlockState) -> None:
        for name, value in zip(blocks, (segment, address, size_bytes, requested_bytes, block_state), strict=True):
            blocks[name].append(value)

    at = 0
    for number, (start, size_bytes, stream, of_large) in enumerate(ranges):
        end = start
        while at < len(live) and live[at][0] < start + size_bytes:
            address, block = live[at]
            if address > end:
                put(number, end, address - end, 0, BlockState.INACTIVE)
            block_bytes, requested_bytes = int(outcome.block_bytes[block]), int(requests.size_bytes[block])
            put(number, address, block_bytes, requested_bytes, state[block])
            end = address + block_bytes
            at += 1
        if end < start + size_bytes:
            put(number, end, start + size_bytes - end, 0, BlockState.INACTIVE)
        columns = (start, size_bytes, stream, of_large, simulation.settings.expandable_segments)
        for name, value in zip(segments, columns, strict=True):
            segments[name].append(value)
    return segments, blocks  # type: ignore[return-value]


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
