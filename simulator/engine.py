"""Replay of a list of requests by the simulated caching allocator: compiled where possible, otherwise in plain Python."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np

from vramcast.core.errors import CompilerError, SimulatedOutOfMemory
from vramcast.simulator import compiled
from vramcast.simulator.blocks import Block
from vramcast.simulator.caching import CachingAllocator
from vramcast.simulator.card import Card
from vramcast.simulator.outcome import EVENT, Outcome
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.trace import Action

Engine = Literal["auto", "compiled", "python"]


def play(
    requests: Requests,
    settings: Settings | None = None,
    card: Card | None = None,
    *,
    stop_at_oom: bool = True,
    columns: bool = True,
    engine: Engine = "auto",
) -> Outcome:
    """Play `requests` from an empty allocator and return the outcome.

    Args:
        requests: The allocator requests, in order.
        settings: Allocator settings; default: torch's.
        card: A fresh card; default: an unlimited one.
        stop_at_oom: Whether to stop at the first request that cannot be served, as a job does. If False, that request and
            later events of its block are skipped.
        columns: Whether to fill the columns of the outcome; if False, it has only peaks and events.
        engine: `auto` is `compiled` if there is a C compiler, otherwise `python`, which is a hundred times slower.
    Raises:
        CompilerError: The engine is `compiled`, and the compiled allocator is not available here.
    """
    settings, card = settings or Settings(), card or Card()
    if engine != "python":
        try:
            return compiled.play(requests, settings, card, stop_at_oom=stop_at_oom, columns=columns)
        except CompilerError as error:
            if engine == "compiled":
                raise
            warnings.warn(f"The allocator is simulated in plain Python, which is slow: {error}", RuntimeWarning, stacklevel=2)
    return _play_in_python(requests, settings, card, stop_at_oom=stop_at_oom)


def _play_in_python(requests: Requests, settings: Settings, card: Card, *, stop_at_oom: bool) -> Outcome:
    n = len(requests)
    events: list[tuple[int, int, int, int, int]] = []
    row = 0

    def listen(action: Action, address: int, size_bytes: int, stream: int) -> None:
        if action >= Action.SEGMENT_ALLOC:
            events.append((action, row, address, size_bytes, stream))

    allocator = CachingAllocator(settings, card, listener=listen, waits=requests.waits, rules=requests.rules)
    statistics = allocator.statistics
    address, block_bytes = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    allocated_bytes, active_bytes, reserved_bytes = (np.full(n, -1, np.int64) for _ in range(3))
    live: dict[int, Block] = {}
    retired: dict[int, Block] = {}
    stopped_at: int | None = None
    columns = (requests.kind.tolist(), requests.size_bytes.tolist(), requests.stream.tolist(), requests.block.tolist())
    for row, (kind, size_bytes, stream, name) in enumerate(zip(*columns, strict=True)):
        if kind in (RequestKind.MALLOC, RequestKind.TRY, RequestKind.TAKE):
            try:
                if kind == RequestKind.TAKE:
                    allocator.take(size_bytes)
                else:
                    block = live[row] = allocator.malloc(size_bytes, stream)
                    address[row], block_bytes[row] = block.address, block.size_bytes
            except SimulatedOutOfMemory:
                block_bytes[row] = 0
                if kind != RequestKind.TRY:
                    stopped_at = row if stopped_at is None else stopped_at
                    if stop_at_oom:
                        break
        elif name in live:
            _about_live(allocator, live, retired, kind, name, stream)
        elif kind == RequestKind.COMPLETE and name in retired:
            allocator.complete(retired.pop(name))
        elif kind == RequestKind.EMPTY:
            allocator.empty_cache()
        elif kind == RequestKind.BEGIN_POOL:
            allocator.begin_pool(size_bytes)
        elif kind == RequestKind.END_POOL:
            allocator.end_pool(size_bytes)
        elif kind == RequestKind.RELEASE_POOL:
            allocator.release_pool(size_bytes)
        if retired and not allocator.pending:  # emptying the cache has completed them all
            retired.clear()
        allocated_bytes[row], active_bytes[row] = statistics.allocated.current, statistics.active.current
        reserved_bytes[row] = statistics.reserved.current
    return Outcome(
        address,
        block_bytes,
        allocated_bytes,
        active_bytes,
        reserved_bytes,
        np.array(events, EVENT),
        allocator.statistics,
        stopped_at,
    )


def _about_live(
    allocator: CachingAllocator, live: dict[int, Block], retired: dict[int, Block], kind: int, name: int, stream: int
) -> None:
    block = live[name]
    if kind == RequestKind.RECORD:
        allocator.record_stream(block, stream)
        return
    del live[name]
    if kind == RequestKind.RETIRE:
        allocator.record_stream(block, ANOTHER_STREAM)
    allocator.free(block)
    if block in allocator.pending:
        retired[name] = block


ANOTHER_STREAM = -1  # arbitrary: the stream that a retired block waits for; traces do not record it
