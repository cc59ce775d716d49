"""Traces under other conditions: the result is the trace that would have been recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from vramcast.simulator.card import BASE, Card
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.rules import MIB
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import OutOfMemory, Simulation, simulate
from vramcast.tracer.format.trace import BLOCK_COLUMNS, EVENT_COLUMNS, SEGMENT_COLUMNS, Action, BlockState, Phase, Trace
from vramcast.tracer.protocol.job_result import Result

from .checker import check
from .sequences import settings as any_settings
from .test_checker import random_requests
from .test_requests import layout, trace_of

A = Action
JOBS = {
    "mlp": {"batch": "8x16", "labels": "8:int64<4"},
    "wide": {"batch": "64x1024", "labels": "64x1024", "optimizer": "adamw", "steps": 3},
}


def recorded(requests: Requests) -> Trace:
    """Return a trace of these requests, without addresses and segments."""
    rows: list[tuple[int, ...]] = []
    begun: dict[int, int] = {}
    columns = (requests.kind.tolist(), requests.size_bytes.tolist(), requests.stream.tolist(), requests.block.tolist())
    for request, (kind, size_bytes, stream, block) in enumerate(zip(*columns, strict=True)):
        if kind in (RequestKind.MALLOC, RequestKind.TRY):
            begun[request] = len(rows)
            rows.append((A.ALLOC, size_bytes, len(rows), stream))
        elif kind in (RequestKind.FREE, RequestKind.RETIRE):
            rows.append((A.FREE_REQUESTED, int(requests.size_bytes[block]), begun[block], int(requests.stream[block])))
        elif kind == RequestKind.EMPTY:
            rows.append((A.EMPTY_CACHE, 0, -1, 0))
        elif kind == RequestKind.TAKE:
            rows.append((A.CONTEXT, size_bytes, -1, 0))
        if kind in (RequestKind.FREE, RequestKind.COMPLETE):
            rows.append((A.FREE_COMPLETED, int(requests.size_bytes[block]), begun[block], int(requests.stream[block])))
    action, size_bytes, block, stream = (list(column) for column in zip(*rows, strict=True))
    n = len(rows)
    said = {"step": np.arange(n) // 9, "phase": np.arange(n) % len(Phase), "op": np.arange(n) % 3 - 1, "time_us": np.arange(n)}
    events = {"action": action, "size_bytes": size_bytes, "block": block, "stream": stream, **said}
    return Trace.build(events, ops=["one", "two"], header={"marks_empty_cache": True}, stream_ids=(0, 7, 9))


def content(trace: Trace, base: int = 0) -> dict[str, Any]:
    """Return everything in a trace, as plain values; addresses count from `base`."""
    said: dict[str, Any] = {name: getattr(trace, name).tolist() for name in EVENT_COLUMNS}
    for part, names in (("segments", SEGMENT_COLUMNS), ("blocks", BLOCK_COLUMNS)):
        said |= {f"{part}.{name}": getattr(getattr(trace, part), name).tolist() for name in names}
    moved = {name: [a - base if a else 0 for a in said[name]] for name in ("address", "segments.address", "blocks.address")}
    return said | moved | {"ops": trace.ops, "stream_ids": trace.stream_ids, "header": trace.header}


def expect_a_sound_layout(simulation: Simulation, replayed: Trace) -> None:
    """Check that the final blocks tile the final segments, and that the sums are right."""
    segments, blocks, statistics = replayed.segments, replayed.blocks, simulation.outcome.statistics
    assert segments is not None
    assert blocks is not None
    for number, (start, total_bytes) in enumerate(zip(segments.address.tolist(), segments.total_size.tolist(), strict=True)):
        inside = blocks.segment == number
        ends = [start, *(blocks.address[inside].astype(np.int64) + blocks.size_bytes[inside]).tolist()]
        assert blocks.address[inside].tolist() == ends[:-1]
        assert ends[-1] == start + total_bytes
    state_bytes = {state: int(blocks.size_bytes[blocks.state == state].sum()) for state in BlockState}
    assert state_bytes[BlockState.ACTIVE_ALLOCATED] == statistics.allocated.current
    assert state_bytes[BlockState.ACTIVE_PENDING_FREE] == statistics.active.current - statistics.allocated.current
    assert int(segments.total_size.sum()) == statistics.reserved.current


@hypothesis_settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    settings=any_settings(),
    total_mib=st.sampled_from([100, 300, 777, None]),
    length=st.integers(1, 120),
    seed=st.integers(0, 2**32 - 1),
)
def test_replayed_trace_replays_to_itself(settings: Settings, total_mib: int | None, length: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(3 * length)
    trace = recorded(random_requests(data, n_streams=3, pools=False, waits=True))

    def card() -> Card:
        return Card() if total_mib is None else Card(total_mib * MIB)

    once = simulate(trace, settings, card())
    assert check(once.requests, once.outcome, settings, card()) == []
    replayed = once.replayed()
    expect_a_sound_layout(once, replayed)
    if not once.fits:
        return  # the replayed trace has neither the request at which it ends nor its retry
    twice = simulate(replayed, settings, card())
    assert content(twice.replayed()) == content(replayed)
    assert twice.outcome.statistics == once.outcome.statistics
    # The last two rows of a block may move towards each other if there is no request between them.
    of_both = [np.isin(some.action, (A.ALLOC, A.EMPTY_CACHE, A.CONTEXT)) for some in (trace, replayed)]
    for name in ("action", "size_bytes", "stream", "step", "phase", "op", "time_us"):
        given, found = (getattr(some, name)[rows].tolist() for some, rows in zip((trace, replayed), of_both, strict=True))
        assert found == given


# ------------------------------------------------------------------------------------------------ small traces
def test_segment_events_surround_their_requests() -> None:
    trace = trace_of(
        (A.ALLOC, 5 * MIB, 0), (A.FREE_REQUESTED, 5 * MIB, 0), (A.FREE_COMPLETED, 5 * MIB, 0), (A.EMPTY_CACHE, 0, -1)
    )
    replayed = simulate(trace, card=Card(policy="windows")).replayed()
    rows = zip(replayed.action.tolist(), replayed.size_bytes.tolist(), replayed.block.tolist(), strict=True)
    assert list(rows) == [
        (A.SEGMENT_ALLOC, 20 * MIB, -1),
        (A.ALLOC, 5 * MIB, 1),
        (A.FREE_REQUESTED, 5 * MIB, 1),
        (A.FREE_COMPLETED, 5 * MIB, 1),
        (A.EMPTY_CACHE, 0, -1),
        (A.SEGMENT_FREE, 20 * MIB, -1),
    ]
    assert replayed.address.tolist() == [BASE] * 4 + [0, BASE]


def test_final_layout_has_all_blocks_and_gaps() -> None:
    trace = trace_of(
        *((A.ALLOC, 5 * MIB - 1, row) for row in range(3)),
        (A.FREE_REQUESTED, 5 * MIB - 1, 1),
        (A.FREE_COMPLETED, 5 * MIB - 1, 1),
        (A.FREE_REQUESTED, 5 * MIB - 1, 2),
        (A.ALLOC, 10, 6, 1),
    )
    replayed = simulate(trace, card=Card(policy="windows")).replayed()
    assert replayed.segments is not None
    assert replayed.blocks is not None
    segments = zip(*(getattr(replayed.segments, name).tolist() for name in SEGMENT_COLUMNS), strict=True)
    assert list(segments) == [(BASE, 20 * MIB, 0, True, False), (BASE + 20 * MIB, 2 * MIB, 1, False, False)]
    blocks = zip(*(getattr(replayed.blocks, name).tolist() for name in BLOCK_COLUMNS), strict=True)
    assert list(blocks) == [
        (0, BASE, 5 * MIB, 5 * MIB - 1, BlockState.ACTIVE_ALLOCATED),
        (0, BASE + 5 * MIB, 5 * MIB, 0, BlockState.INACTIVE),
        (0, BASE + 10 * MIB, 5 * MIB, 5 * MIB - 1, BlockState.ACTIVE_PENDING_FREE),
        (0, BASE + 15 * MIB, 5 * MIB, 0, BlockState.INACTIVE),
        (1, BASE + 20 * MIB, 512, 10, BlockState.ACTIVE_ALLOCATED),
        (1, BASE + 20 * MIB + 512, 2 * MIB - 512, 0, BlockState.INACTIVE),
    ]


def test_final_layout_lacks_block_reclaimed_by_retry() -> None:
    trace = trace_of((A.ALLOC, 30 * MIB, 0), (A.FREE_REQUESTED, 30 * MIB, 0), (A.ALLOC, 40 * MIB, 2))
    simulation = simulate(trace, card=Card(60 * MIB, policy="windows"))
    assert (simulation.fits, simulation.retries) == (True, 1)
    expect_a_sound_layout(simulation, simulation.replayed())


def test_expandable_layout_has_row_per_range() -> None:
    trace = trace_of(
        (A.ALLOC, 20 * MIB, 0),
        (A.ALLOC, 40 * MIB, 1),
        (A.ALLOC, 20 * MIB, 2),
        (A.FREE_REQUESTED, 40 * MIB, 1),
        (A.FREE_COMPLETED, 40 * MIB, 1),
        (A.EMPTY_CACHE, 0, -1),
    )
    simulation = simulate(trace, Settings(expandable_segments=True), Card(policy="windows"))
    replayed = simulation.replayed()
    assert replayed.segments is not None
    segments = zip(*(getattr(replayed.segments, name).tolist() for name in SEGMENT_COLUMNS), strict=True)
    assert list(segments) == [(BASE, 20 * MIB, 0, True, True), (BASE + 60 * MIB, 20 * MIB, 0, True, True)]
    expect_a_sound_layout(simulation, replayed)


def test_older_blocks_come_first() -> None:
    trace = trace_of(
        (A.ALLOC, 100, 0, 0, 0x2000),
        (A.FREE_COMPLETED, 700, -1, 1, 0x9200),
        **layout([(0, 0x1000, 512, BlockState.ACTIVE_ALLOCATED), (0, 0x2000, 100, BlockState.ACTIVE_ALLOCATED)]),
    )
    replayed = simulate(trace).replayed()
    rows = zip(replayed.action.tolist(), replayed.size_bytes.tolist(), replayed.stream.tolist(), strict=True)
    assert list(rows) == [
        (A.SEGMENT_ALLOC, 2 * MIB, 0),
        (A.ALLOC, 512, 0),
        (A.SEGMENT_ALLOC, 2 * MIB, 1),
        (A.ALLOC, 700, 1),
        (A.ALLOC, 100, 0),
        (A.FREE_REQUESTED, 700, 1),
        (A.FREE_COMPLETED, 700, 1),
    ]


# ------------------------------------------------------------------------------------------------ out of memory
def two_blocks(**others: Any) -> Trace:
    events = {
        "action": [A.ALLOC, A.ALLOC, A.ALLOC],
        "size_bytes": [30 * MIB, 30 * MIB, 1],
        "block": [0, 1, 2],
        "step": [0, 4, 4],
        "phase": [Phase.BUILD, Phase.BACKWARD, Phase.OTHER],
        "op": [-1, 0, -1],
        "module": [-1, 0, -1],
    }
    header = {"marks_empty_cache": True, "peaks": {"reserved": 1}}
    return Trace.build(events, ops=["aten::mm"], modules=["net.0"], header=header, **others)


def test_unfitting_job_reports_its_end() -> None:
    simulation = simulate(two_blocks(), card=Card(50 * MIB, 7 * MIB))
    assert not simulation.fits
    assert simulation.out_of_memory == OutOfMemory(1, 30 * MIB, 5, "backward", "aten::mm", "net.0")
    assert (simulation.allocated, simulation.reserved, simulation.retries) == (30 * MIB, 30 * MIB, 1)
    replayed = simulation.replayed()
    assert replayed.action.tolist() == [A.SEGMENT_ALLOC, A.ALLOC, A.OOM]
    assert (int(replayed.step[2]), int(replayed.op[2]), int(replayed.size_bytes[2])) == (4, 0, 30 * MIB)
    assert replayed.header["oom_device_free_bytes"] == [13 * MIB]
    expect_a_sound_layout(simulation, replayed)


def test_unknown_place_still_ends_job() -> None:
    simulation = simulate(two_blocks(), card=Card(29 * MIB))
    assert simulation.out_of_memory == OutOfMemory(0, 30 * MIB, 1, "build", None, None)
    assert simulation.replayed().action.tolist() == [A.OOM]


def test_job_may_end_before_trace_begins() -> None:
    trace = trace_of((A.FREE_COMPLETED, 30 * MIB, -1, 0, 0x1000))
    assert simulate(trace, card=Card(20 * MIB)).out_of_memory == OutOfMemory(-1, 30 * MIB, 0, "build", None, None)


def test_fitting_job_has_no_end() -> None:
    simulation = simulate(two_blocks(), card=Card(69 * MIB, 7 * MIB))
    assert simulation.fits
    assert simulation.out_of_memory is None


def test_replayed_header_has_simulated_facts() -> None:
    header = simulate(two_blocks(), Settings(expandable_segments=True), Card(99 * MIB, MIB)).replayed().header
    simulated = {"settings": "expandable_segments:True", "total_bytes": 99 * MIB, "context_bytes": MIB, "limited": True}
    assert header["simulated"] == simulated
    assert "peaks" not in header


def test_reused_requests_give_same_result() -> None:
    trace = two_blocks()
    simulation = simulate(trace, requests=Requests.of(trace), engine="python")
    assert content(simulation.replayed()) == content(simulate(trace).replayed())
    assert simulate(trace, requests=Requests.of(trace), columns=False).reserved == simulation.reserved == 62 * MIB


# ------------------------------------------------------------------------------------------------ real jobs
@pytest.mark.parametrize("model", JOBS)
def test_simulation_matches_torch_on_null_gpu(trace: Callable[..., Result], tiny_models: Path, model: str) -> None:
    real = trace(target=f"{tiny_models}:{model}", **JOBS[model]).trace
    assert real is not None
    simulation = simulate(real)
    replayed = simulation.replayed()
    peaks = real.header["peaks"]
    statistics = simulation.outcome.statistics
    assert (simulation.allocated, simulation.reserved) == (peaks["allocated"], peaks["reserved"])
    assert (statistics.requested.peak, simulation.retries, statistics.n_ooms) == (
        peaks["requested"],
        peaks["retries"],
        peaks["ooms"],
    )
    ours, theirs = (content(made, int(made.address[made.address > 0].min())) for made in (replayed, real))
    for said in (ours, theirs):  # torch keeps the size of a free block's last request
        states = said["blocks.state"]
        said["blocks.requested_bytes"] = [
            size if state != BlockState.INACTIVE else 0
            for size, state in zip(said["blocks.requested_bytes"], states, strict=True)
        ]
    compared = (
        "action",
        "address",
        "size_bytes",
        "stream",
        "block",
        *(n for n in ours if n.startswith(("segments", "blocks"))),
    )
    for name in compared:
        assert ours[name] == theirs[name], name
    assert check(simulation.requests, simulation.outcome, Settings(), Card()) == []
