"""Fragmentation: exact bytes of small histories, and the bytes released when the cache is emptied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.simulator.fragmentation import OLDER, Fragmentation, fragmentation
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.trace import Action, BlockState, Category, Phase, Trace

MIB = 2**20
BASE = 2**40
LARGE, SMALL = BASE, BASE + 1024 * MIB

Row = tuple[Action, int, int, int]  # action, address, bytes, block


def history(rows: list[Row], **more: Any) -> Trace:
    """Return a trace of these rows; the ALLOC in row r belongs to operator "op<r>" in module "m<r>", of step 0."""
    action, address, size_bytes, block = (list(column) for column in zip(*rows, strict=True))
    named = [row if code == Action.ALLOC else -1 for row, code in enumerate(action)]
    names = range(len(rows))
    return Trace.build(
        {
            "action": action, "address": address, "size_bytes": size_bytes, "block": block, "op": named, "module": named,
            "step": [0] * len(rows), "phase": [Phase.FORWARD] * len(rows), "category": [Category.ACTIVATION] * len(rows),
        },
        ops=[f"op{row}" for row in names],
        modules=[f"m{row}" for row in names],
        **more,
    )  # fmt: skip


def layout(segments: list[tuple[int, int, bool]], blocks: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Return a final layout: segments (address, bytes, expandable), live blocks (segment, address, bytes)."""
    return {
        "segments": {
            "address": [address for address, _, _ in segments],
            "total_size": [size_bytes for _, size_bytes, _ in segments],
            "stream": [0] * len(segments),
            "is_large": [True] * len(segments),
            "is_expandable": [expandable for _, _, expandable in segments],
        },
        "blocks": {
            "segment": [segment for segment, _, _ in blocks],
            "address": [address for _, address, _ in blocks],
            "size_bytes": [size_bytes for _, _, size_bytes in blocks],
            "requested_bytes": [size_bytes for _, _, size_bytes in blocks],
            "state": [BlockState.ACTIVE_ALLOCATED] * len(blocks),
        },
    }


# The drawing at the top of the module: 20 MiB with 2 of a parameter, and 4 and 3 of activations; and an empty segment.
DRAWING: list[Row] = [
    (Action.SEGMENT_ALLOC, LARGE, 20 * MIB, -1),
    (Action.ALLOC, LARGE, 2 * MIB, 1),
    (Action.ALLOC, LARGE + 2 * MIB, 4 * MIB, 2),
    (Action.ALLOC, LARGE + 11 * MIB, 3 * MIB, 3),
    (Action.SEGMENT_ALLOC, SMALL, 2 * MIB, -1),
    (Action.ALLOC, SMALL, 1000, 5),
    (Action.FREE_COMPLETED, SMALL, 1000, 5),
    (Action.FREE_COMPLETED, LARGE + 11 * MIB, 3 * MIB, 3),
    (Action.FREE_COMPLETED, LARGE + 2 * MIB, 4 * MIB, 2),
]


def pins(found: Fragmentation) -> list[list[int]]:
    """Return, for every segment, the bytes attributed to each of its blocks."""
    return [[block.pinned_bytes for block in segment.blocks] for segment in found.segments]


# ------------------------------------------------------------------------------------------------ exact bytes
def test_last_block_pins_segment() -> None:
    found = fragmentation(history(DRAWING), 6)
    large, small = found.segments
    assert (large.address, large.size_bytes, large.live_bytes, large.free_bytes) == (LARGE, 20 * MIB, 9 * MIB, 11 * MIB)
    assert (large.pinned_bytes, large.largest_free_bytes) == (11 * MIB, 6 * MIB)
    assert pins(found) == [[11 * MIB, 0, 0], []]
    assert (small.size_bytes, small.free_bytes, small.pinned_bytes, small.largest_free_bytes) == (2 * MIB, 2 * MIB, 0, 2 * MIB)
    assert (found.reserved_bytes, found.live_bytes, found.free_bytes) == (22 * MIB, 9 * MIB, 13 * MIB)
    assert (found.pinned_bytes, found.n_free_segments, found.free_share) == (11 * MIB, 1, 13 / 22)
    assert (found.by_module, found.by_op) == ({"m1": 11 * MIB}, {"op1": 11 * MIB})


def test_block_has_begin_and_end() -> None:
    parameter, activation, _ = fragmentation(history(DRAWING), 6).segments[0].blocks
    assert (parameter.op, parameter.module, parameter.category, parameter.step) == ("op1", "m1", "activation", 1)
    assert (parameter.phase, parameter.end_row, parameter.size_bytes) == ("forward", None, 2 * MIB)
    assert (activation.address, activation.end_row, activation.is_older) == (LARGE + 2 * MIB, 8, False)


def test_parameter_pins_more_alone() -> None:
    assert pins(fragmentation(history(DRAWING), 8)) == [[18 * MIB], []]


def test_blocks_ending_together_share_pinned_bytes() -> None:
    rows: list[Row] = [(Action.SEGMENT_ALLOC, SMALL, 2 * MIB, -1)]
    rows += [(Action.ALLOC, SMALL + at * 512, 512, len(rows) + number) for number, at in enumerate((9, 0, 5))]
    found = fragmentation(history(rows), 3)
    free_bytes = 2 * MIB - 3 * 512
    # By address; two bytes remain when the free ones are divided by three.
    assert pins(found) == [[free_bytes // 3 + 1, free_bytes // 3 + 1, free_bytes // 3]]
    assert found.by_module == {"m2": free_bytes // 3 + 1, "m3": free_bytes // 3 + 1, "m1": free_bytes // 3}


def test_default_row_is_first_block_at_peak() -> None:
    rows: list[Row] = [
        (Action.SEGMENT_ALLOC, SMALL, 2 * MIB, -1),
        (Action.ALLOC, SMALL, 512, 1),
        (Action.SEGMENT_ALLOC, LARGE, 20 * MIB, -1),
        (Action.ALLOC, LARGE, 5 * MIB, 3),
        (Action.ALLOC, LARGE + 5 * MIB, 5 * MIB, 4),
        (Action.SEGMENT_FREE, LARGE, 20 * MIB, -1),
        (Action.ALLOC, SMALL + 512, 512, 6),
    ]
    assert fragmentation(history(rows)).row == 3
    assert fragmentation(history(rows[:3])).row == 2
    assert fragmentation(history(rows), 1).reserved_bytes == 2 * MIB


def test_released_segment_address_can_be_reused() -> None:
    rows: list[Row] = [
        (Action.SEGMENT_ALLOC, LARGE, 20 * MIB, -1),
        (Action.SEGMENT_FREE, LARGE, 20 * MIB, -1),
        (Action.SEGMENT_ALLOC, LARGE, 8 * MIB, -1),
        (Action.SEGMENT_ALLOC, LARGE + 8 * MIB, 12 * MIB, -1),
    ]
    held = [[(s.address, s.size_bytes) for s in fragmentation(history(rows), row).segments] for row in range(-1, 4)]
    one, two = (LARGE, 8 * MIB), (LARGE + 8 * MIB, 12 * MIB)
    assert held == [[], [(LARGE, 20 * MIB)], [], [one], [one, two]]


# ------------------------------------------------------------------------------------------------ expandable segments
def test_only_pages_with_live_blocks_are_pinned() -> None:
    rows: list[Row] = [
        (Action.SEGMENT_MAP, LARGE, 40 * MIB, -1),
        (Action.ALLOC, LARGE, 5 * MIB, 1),
        (Action.SEGMENT_MAP, LARGE + 40 * MIB, 60 * MIB, -1),
        (Action.ALLOC, LARGE + 55 * MIB, 15 * MIB, 3),  # 5 MiB of page 2, 10 of page 3
        (Action.ALLOC, LARGE + 70 * MIB, 4 * MIB, 4),
        (Action.FREE_COMPLETED, LARGE + 70 * MIB, 4 * MIB, 4),
    ]
    (segment,) = fragmentation(history(rows), 4).segments
    assert (segment.size_bytes, segment.live_bytes, segment.largest_free_bytes) == (100 * MIB, 24 * MIB, 50 * MIB)
    # Pages of 20 MiB: 15 free next to the first block, 15 and 6 next to the second; the third ends before it.
    assert [block.pinned_bytes for block in segment.blocks] == [15 * MIB, 21 * MIB, 0]
    assert (segment.pinned_bytes, segment.is_expandable) == (36 * MIB, True)


def test_hole_splits_small_expandable_range() -> None:
    rows: list[Row] = [
        (Action.SEGMENT_MAP, SMALL, 8 * MIB, -1),
        (Action.ALLOC, SMALL + MIB, MIB, 1),
        (Action.ALLOC, SMALL + 6 * MIB + MIB // 2, MIB, 2),
        (Action.SEGMENT_UNMAP, SMALL + 2 * MIB, 2 * MIB, -1),
    ]
    found = fragmentation(history(rows), 3)
    assert [(s.address, s.size_bytes, s.pinned_bytes) for s in found.segments] == [
        (SMALL, 2 * MIB, MIB),
        (SMALL + 4 * MIB, 4 * MIB, MIB),
    ]
    assert found.free_bytes == 4 * MIB


def test_pages_of_two_ranges_stay_apart() -> None:
    rows: list[Row] = [
        (Action.SEGMENT_MAP, LARGE, 40 * MIB, -1),
        (Action.ALLOC, LARGE, 33 * MIB, 1),
        (Action.SEGMENT_MAP, SMALL, 2 * MIB, -1),
        (Action.ALLOC, SMALL, MIB, 3),
        (Action.FREE_COMPLETED, LARGE, 33 * MIB, 1),
    ]
    assert pins(fragmentation(history(rows), 3)) == [[7 * MIB], [MIB]]


# ------------------------------------------------------------------------------------------------ older than the trace
def test_finds_blocks_and_segments_older_than_trace() -> None:
    rows: list[Row] = [
        (Action.ALLOC, LARGE + 4 * MIB, 2 * MIB, 0),
        (Action.FREE_COMPLETED, LARGE, 4 * MIB, -1),
        (Action.SEGMENT_FREE, SMALL, 2 * MIB, -1),
    ]
    end = layout([(LARGE, 20 * MIB, False)], [(0, LARGE + 4 * MIB, 2 * MIB), (0, LARGE + 10 * MIB, 3 * MIB)])
    found = fragmentation(history(rows, **end), 0)
    assert [(s.address, s.size_bytes, s.live_bytes) for s in found.segments] == [
        (LARGE, 20 * MIB, 9 * MIB),
        (SMALL, 2 * MIB, 0),
    ]
    freed, own, kept = found.segments[0].blocks
    assert [block.is_older for block in (freed, own, kept)] == [True, False, True]
    assert (freed.end_row, own.end_row, kept.end_row) == (1, None, None)
    # Two outlive the trace.
    assert [block.pinned_bytes for block in (freed, own, kept)] == [0, 11 * MIB // 2, 11 * MIB // 2]
    assert found.by_module == {"m0": 11 * MIB // 2, OLDER: 11 * MIB // 2}
    assert OLDER in str(found)
    assert [len(s.blocks) for s in fragmentation(history(rows, **end), 2).segments] == [2]
    assert [len(s.blocks) for s in fragmentation(history(rows, **end), -1).segments] == [2, 0]


def test_snapshot_without_history_is_its_layout() -> None:
    trace = Trace.build(
        {"action": [], "size_bytes": [], "block": []},
        **layout([(LARGE, 20 * MIB, False), (SMALL, 40 * MIB, True)], [(0, LARGE, 5 * MIB), (1, SMALL + 25 * MIB, 5 * MIB)]),
    )
    found = fragmentation(trace)
    assert (found.row, found.reserved_bytes, found.pinned_bytes) == (-1, 60 * MIB, 30 * MIB)
    assert found.by_op == {OLDER: 30 * MIB}
    assert "before the first event" in str(found)


# ------------------------------------------------------------------------------------------------ errors
def test_rejects_trace_without_segments_or_addresses() -> None:
    trace = Trace.build({"action": [Action.ALLOC], "size_bytes": [5], "block": [0]})
    with pytest.raises(UsageError, match="has no segments"):
        fragmentation(trace)
    with pytest.raises(UsageError, match="has no segments"):
        fragmentation(trace, 0)
    columns = {"action": [Action.SEGMENT_ALLOC, Action.ALLOC], "size_bytes": [2 * MIB, 5], "block": [-1, 1]}
    with pytest.raises(UsageError, match="No live block lies in a segment"):
        fragmentation(Trace.build({**columns, "address": [LARGE, 0]}))


def test_rejects_two_blocks_at_one_address() -> None:
    rows = [*DRAWING[:3], (Action.ALLOC, LARGE + 5 * MIB, MIB, 3)]
    with pytest.raises(UsageError, match=f"Two blocks live at {LARGE + 5 * MIB:#x} after row 3"):
        fragmentation(history(rows), 3)


@pytest.mark.parametrize("row", [-2, 9])
def test_rejects_row_outside_trace(row: int) -> None:
    with pytest.raises(UsageError, match="is not in the trace"):
        fragmentation(history(DRAWING), row)


def test_block_outside_segments_is_counted_outside() -> None:
    workspace = {"action": [Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED], "size_bytes": 700, "block": [0, 0, 0]}
    trace = history(DRAWING).insert([2, 2, 2], workspace)
    found = fragmentation(trace, 2)
    assert (found.outside_bytes, found.live_bytes) == (1024, 2 * MIB)
    assert "outside" in str(found)
    assert "outside" not in str(fragmentation(trace, 4))


# ------------------------------------------------------------------------------------------------ output
def test_report_is_json_and_readable() -> None:
    found = fragmentation(history(DRAWING), 6)
    said = json.loads(json.dumps(found.to_dict()))
    assert {key: said[key] for key in ("row", "reserved_bytes", "live_bytes", "free_bytes", "pinned_bytes")} == {
        "row": 6, "reserved_bytes": 22 * MIB, "live_bytes": 9 * MIB, "free_bytes": 13 * MIB, "pinned_bytes": 11 * MIB,
    }  # fmt: skip
    assert said["by_module"] == {"m1": 11 * MIB}
    assert [segment["free_bytes"] for segment in said["segments"]] == [11 * MIB, 2 * MIB]
    assert said["segments"][0]["blocks"][0]["pinned_bytes"] == 11 * MIB
    lines = str(found).splitlines()
    assert lines[0] == "fragmentation at row 6: step 1, forward"
    assert "free             13.0 MiB   59% of reserved" in lines
    assert "  pinned         11.0 MiB   kept by live blocks in the same unit" in lines
    assert "  not pinned      2.0 MiB   released when memory runs short; 1 segments without blocks" in lines
    assert "   11.0 MiB    20.0 MiB      6.0 MiB      3   2.0 MiB activation of step 1 forward, m1, op1" in lines
    assert "   11.0 MiB   m1" in lines


def test_prints_untrusted_names_safely() -> None:
    trace = history(DRAWING)
    trace.ops[1], trace.modules[1] = "\x1b[31mop", "m" * 200
    text = str(fragmentation(trace, 6))
    assert all(line.isprintable() for line in text.splitlines())
    assert max(map(len, text.splitlines())) < 160


# ------------------------------------------------------------------------------------------------ against the simulator
SETTINGS = (
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "max_split_size_mb:32",
    "expandable_segments:True,large_segment_size_mb:40",
)
SIZES = (1, 512, 70_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 12 * MIB, 33 * MIB)


@st.composite
def jobs(draw: st.DrawFn) -> Trace:
    """Draw requests of one stream without addresses: blocks come and go in any order."""
    rows: list[Row] = []
    live: list[int] = []
    for choice in draw(st.lists(st.integers(0, 2**16), max_size=60)):
        if live and choice % 5 < 2:
            block = live.pop(choice % len(live))
            rows += [(action, 0, 0, block) for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)]
        else:
            live.append(len(rows))
            rows.append((Action.ALLOC, 0, SIZES[choice % len(SIZES)], len(rows)))
    return history(rows) if rows else Trace.build({"action": [], "size_bytes": [], "block": []})


@hypothesis_settings(deadline=None)
@given(job=jobs(), conf=st.sampled_from(SETTINGS), share=st.floats(0, 1))
def test_unpinned_bytes_are_those_released(job: Trace, conf: str, share: float) -> None:
    settings = Settings.parse(conf)
    cut = round(share * len(job))
    if cut and job.action[cut - 1] == Action.FREE_REQUESTED:
        cut -= 1  # a block between the two is waiting, and is released when the cache is emptied
    n_before = len(simulate(first_rows(job, cut), settings).replayed())
    replayed = simulate(job, settings).replayed()
    if not len(replayed):
        return
    found = fragmentation(replayed, n_before - 1)
    gained = np.isin(replayed.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    reserved = int(replayed.size_bytes[:n_before][gained[:n_before]].sum())  # these jobs release nothing
    sizes = [settings.round_bytes(int(job.size_bytes[block])) for block in job.live_at(cut - 1).tolist()]
    assert (found.reserved_bytes, found.live_bytes, found.outside_bytes) == (reserved, sum(sizes), 0)
    assert sum(found.by_module.values()) == sum(found.by_op.values()) == found.pinned_bytes <= found.free_bytes
    for segment in found.segments:
        assert segment.live_bytes + segment.free_bytes == segment.size_bytes
        assert sum(block.pinned_bytes for block in segment.blocks) == segment.pinned_bytes <= segment.free_bytes
        assert 0 <= segment.largest_free_bytes <= segment.free_bytes
        assert bool(segment.blocks) or segment.pinned_bytes == 0
    # The reference is the allocator itself, which releases everything at this moment.
    emptied = first_rows(job, cut).insert([cut], {"action": [Action.EMPTY_CACHE], "size_bytes": [0], "block": [-1]})
    after = simulate(emptied, settings).outcome.reserved_bytes
    assert after is not None
    assert found.live_bytes + found.pinned_bytes == int(after[-1])


def first_rows(trace: Trace, n: int) -> Trace:
    columns = {name: getattr(trace, name)[:n] for name in ("action", "size_bytes", "block", "op", "module")}
    return Trace.build(columns, ops=trace.ops, modules=trace.modules, header={"marks_empty_cache": True})


@hypothesis_settings(deadline=None)
@given(job=jobs(), conf=st.sampled_from(SETTINGS))
def test_final_segments_match_layout(job: Trace, conf: str) -> None:
    replayed = simulate(job, Settings.parse(conf)).replayed()
    if not len(replayed):
        return
    found = fragmentation(replayed, len(replayed) - 1)
    assert replayed.segments is not None
    assert [(s.address, s.size_bytes, s.is_expandable) for s in found.segments] == list(
        zip(
            replayed.segments.address.tolist(),
            replayed.segments.total_size.tolist(),
            replayed.segments.is_expandable.tolist(),
            strict=True,
        )
    )


def test_traced_and_simulated_reports_agree(trace: Callable[..., Any], tiny_models: Path) -> None:
    traced = trace(target=f"{tiny_models}:wide", batch="64x1024", labels="64x1024").trace
    found, again = fragmentation(traced), fragmentation(simulate(traced).replayed())
    assert found.reserved_bytes == traced.header["peaks"]["reserved"]
    assert found.outside_bytes == 0
    assert (again.reserved_bytes, again.live_bytes, again.pinned_bytes) == (
        found.reserved_bytes, found.live_bytes, found.pinned_bytes,
    )  # fmt: skip
    assert again.by_module == found.by_module
    assert sum(found.by_module.values()) == found.pinned_bytes > 0
