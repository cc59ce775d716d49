"""Snapshots: read without trust, converted without loss, and written for PyTorch's own viewers."""

from __future__ import annotations

import contextlib
import csv
import gzip
import os
import pickle
import pickletools
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recordings import parameters
from vramcast.core.errors import TraceFileError, UsageError
from vramcast.tracer.format.snapshot import read_snapshot, snapshot_from_trace, trace_from_snapshot, write_snapshot
from vramcast.tracer.format.trace import BLOCK_COLUMNS, EVENT_COLUMNS, SEGMENT_COLUMNS, Action, BlockState, Category, Trace

_SHARED = Path(os.environ.get("VRAMCAST_SHARED") or Path(__file__).parents[3].parent / "shared")
RECORDED = sorted((_SHARED / "data" / "snapshots").glob("*/*.p*k*l*"))
needs_recordings = pytest.mark.skipif(not RECORDED, reason="recorded snapshots are missing (VRAMCAST_SHARED)")

BASE = 0x7F0000000000


def entry(action: str, addr: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], "time_us": 1, **more}


def a_snapshot() -> dict[str, Any]:
    """Return a handmade history: a segment, two blocks, one of them freed, an out-of-memory event, a side stream."""
    frames = [
        {"name": "torch::unwind::unwind()", "filename": "??", "line": 0},
        {"name": "convert", "filename": "/site-packages/torch/nn/modules/module.py", "line": 1355},
        {"name": "main", "filename": "train.py", "line": 3},
    ]
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": 2097152,
        "allocated_size": 512,
        "active_size": 512,
        "requested_size": 4,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {"address": BASE, "size": 1024, "requested_size": 1000, "state": "inactive", "frames": []},
            {"address": BASE + 1024, "size": 512, "requested_size": 4, "state": "active_allocated", "frames": frames},
            {"address": BASE + 1536, "size": 2095616, "requested_size": 0, "state": "inactive", "frames": []},
        ],
    }
    history = [
        entry("segment_alloc", BASE, 2097152),
        entry("alloc", BASE, 1000, frames=frames),
        entry("alloc", BASE + 1024, 4, stream=77, frames=frames),
        entry("free_requested", BASE, 1000),
        entry("free_completed", BASE, 1000),
        {"action": "oom", "size": 2**40, "device_free": 12345, "stream": 0, "frames": [], "time_us": 9},
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 10},
    ]
    return {"segments": [segment], "device_traces": [history, []], "allocator_settings": {"expandable_segments": False}}


def dumped(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


def live_bytes(trace: Trace) -> np.ndarray[Any, Any]:
    """Return the requested bytes that are live after each row."""
    own = trace.block >= 0
    sign = np.where(trace.action == Action.ALLOC, 1, np.where((trace.action == Action.FREE_COMPLETED) & own, -1, 0))
    return np.cumsum(sign * trace.size_bytes)


# Converting -------------------------------------------------------------------------------------------------------


def test_history_becomes_columns() -> None:
    trace = trace_from_snapshot(a_snapshot(), header={"device": "H200"})
    assert [Action(code).name.lower() for code in trace.action] == [
        "segment_alloc", "alloc", "alloc", "free_requested", "free_completed", "oom", "snapshot",
    ]  # fmt: skip
    assert trace.block.tolist() == [-1, 1, 2, 1, 1, -1, -1]
    assert trace.size_bytes.tolist() == [2097152, 1000, 4, 1000, 1000, 2**40, 0]
    assert trace.stream.tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert trace.stream_ids == [0, 77]
    assert trace.ops == ["convert"]  # the innermost Python function, not C++'s unwind
    assert trace.op.tolist() == [-1, 0, 0, -1, -1, -1, -1]
    assert trace.header["device"] == "H200"
    assert trace.header["oom_device_free_bytes"] == [12345]
    assert trace.header["warnings"] == []
    assert trace.segments is not None
    assert trace.blocks is not None
    assert trace.blocks.state.tolist() == [BlockState.INACTIVE, BlockState.ACTIVE_ALLOCATED, BlockState.INACTIVE]
    assert trace.blocks.requested_bytes.tolist() == [1000, 4, 0]


def test_free_of_older_block_has_no_row() -> None:
    history = [entry("free_requested", BASE, 512), entry("free_completed", BASE, 512), entry("alloc", BASE, 8)]
    trace = trace_from_snapshot({"segments": [], "device_traces": [history]})
    assert trace.block.tolist() == [-1, -1, 2]


def test_reused_address_names_newer_block() -> None:
    once = [entry("alloc", BASE, 8), entry("free_requested", BASE, 8), entry("free_completed", BASE, 8)]
    trace = trace_from_snapshot({"segments": [], "device_traces": [once + once]})
    assert trace.block.tolist() == [0, 0, 0, 3, 3, 3]


def test_free_after_end_belongs_to_unrecorded_block() -> None:
    free = [entry("free_requested", BASE, 8), entry("free_completed", BASE, 8)]
    trace = trace_from_snapshot({"segments": [], "device_traces": [[entry("alloc", BASE, 8), *free, *free]]})
    assert trace.block.tolist() == [0, 0, 0, -1, -1]


def test_rejects_block_freed_twice() -> None:
    history = [entry("alloc", BASE, 8), entry("free_requested", BASE, 8), entry("free_requested", BASE, 8)]
    with pytest.raises(TraceFileError, match="block 0 has two FREE_REQUESTED"):
        trace_from_snapshot({"segments": [], "device_traces": [history]})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"action": 7}, "'action' has type int, expected str"),
        ({"addr": None}, "'addr' has type NoneType, expected int"),
        ({"size": True}, "'size' has type bool, expected int"),
        ({"action": "oom", "device_free": "much"}, "'device_free' has type str, expected int"),
    ],
)
def test_names_number_of_damaged_entry(damage: dict[str, Any], words: str) -> None:
    history = [entry("new_thing", 0, 1), entry("alloc", BASE, 8), {**entry("alloc", BASE + 512, 8), **damage}]
    with pytest.raises(TraceFileError, match=f"Entry 2 of device 0 is damaged: {words}"):
        trace_from_snapshot({"segments": [], "device_traces": [history]})


def test_warnings_count_losses() -> None:
    history = [entry("alloc", BASE, 8), entry("alloc", BASE, 9), entry("new_thing", BASE, 1), entry("new_thing", 0, 1)]
    trace = trace_from_snapshot({"segments": [], "device_traces": [history]})
    assert trace.header["warnings"] == [
        "2 entries of unknown action 'new_thing' are left out",
        "1 blocks overlap blocks that were never freed: entries are missing",
    ]


def test_warnings_count_segments_of_private_pools() -> None:
    snapshot = a_snapshot()
    snapshot["segments"].append({**snapshot["segments"][0], "address": BASE << 4, "blocks": [], "segment_pool_id": (0, 3)})
    snapshot["segments"][-1]["total_size"] = 0
    (warning,) = trace_from_snapshot(snapshot).header["warnings"]
    assert "1 segments belong to private pools" in warning


def test_reads_bare_list_of_segments(tmp_path: Path) -> None:
    segment = {
        "address": BASE,
        "total_size": 2097152,
        "stream": 0,
        "segment_type": "small",
        "blocks": [
            {"size": 512, "state": "active_allocated", "history": [{"addr": BASE, "real_size": 12}]},
            {"size": 2096640, "state": "inactive"},
        ],
    }
    snapshot = read_snapshot(dumped(tmp_path / "old.pickle", [segment], protocol=2))
    assert snapshot == {"segments": [segment], "device_traces": [], "allocator_settings": {}}
    trace = trace_from_snapshot(snapshot)
    assert len(trace) == 0
    assert trace.blocks is not None
    assert trace.blocks.address.tolist() == [BASE, BASE + 512]
    assert trace.blocks.requested_bytes.tolist() == [12, 2096640]


def test_reads_history_without_times_or_categories(tmp_path: Path) -> None:
    old = {"action": "alloc", "addr": BASE, "size": 5, "stream": 0, "frames": []}
    path = dumped(tmp_path / "old.pickle", {"segments": [], "device_traces": [[old]]})
    assert trace_from_snapshot(read_snapshot(path)).time_us.tolist() == [0]


@pytest.mark.parametrize("device_index", [-1, 2])
def test_rejects_device_outside_snapshot(device_index: int) -> None:
    with pytest.raises(UsageError, match="it has 2"):
        trace_from_snapshot(a_snapshot(), device_index)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"action": None}, "'action' has type NoneType"),
        ({"addr": "x"}, "'addr' has type str"),
        ({"size": 1.5}, "'size' has type float"),
        ({"size": -1}, "size_bytes is -1"),
        ({"size": 2**63}, "does not fit int64"),
        ({"addr": -1}, "does not fit uint64"),
        ({"stream": -1}, "stream_ids"),
        ({"time_us": 2**70}, "does not fit int64"),
    ],
)
def test_names_damaged_entry(damage: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceFileError, match=reason):
        trace_from_snapshot({"segments": [], "device_traces": [[{**entry("alloc", BASE, 8), **damage}]]})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"blocks": 3}, "'blocks' is not a list"),
        ({"blocks": [{"size": 1, "state": []}]}, "state of a block"),
        ({"blocks": [{"state": "inactive"}]}, "'size' has type NoneType"),
        ({"total_size": None}, "'total_size'"),
        ({"device": "cuda"}, "'device'"),
    ],
)
def test_names_damaged_segment(damage: dict[str, Any], reason: str) -> None:
    snapshot = a_snapshot()
    snapshot["segments"][0] |= damage
    with pytest.raises(TraceFileError, match=reason):
        trace_from_snapshot(snapshot)


def test_rejects_settings_not_in_json() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for settings in ({"x": deep}, {"x": {1, 2}}, {(1, 2): 3}):
        with pytest.raises(TraceFileError, match="not JSON"):
            trace_from_snapshot({"segments": [], "allocator_settings": settings})


# Round trips ------------------------------------------------------------------------------------------------------


def assert_same_events(left: Trace, right: Trace) -> None:
    for name in set(EVENT_COLUMNS) - {"operator", "stream", "step", "phase"}:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), name)
    for column, table in (("op", "ops"), ("module", "modules")):  # the tables may have another order
        names = [[getattr(t, table)[i] if i >= 0 else None for i in getattr(t, column).tolist()] for t in (left, right)]
        assert names[0] == names[1]
    assert [left.stream_ids[i] for i in left.stream] == [right.stream_ids[i] for i in right.stream]


def assert_same_layout(left: Trace, right: Trace) -> None:
    for table, columns in (("segments", SEGMENT_COLUMNS), ("blocks", BLOCK_COLUMNS)):
        for name in set(columns) - {"stream"}:
            ours, theirs = (getattr(getattr(t, table), name) for t in (left, right))
            np.testing.assert_array_equal(ours, theirs, f"{table}.{name}")


@st.composite
def random_traces(draw: st.DrawFn) -> Trace:
    """Draw a job on four addresses, with events in an allocator's order; some blocks are older than the trace."""
    columns: dict[str, list[int]] = {n: [] for n in (set(EVENT_COLUMNS) | {"op", "module"}) - {"step", "phase", "operator"}}
    live: dict[int, int | None] = {0: -1, 512: -1, 1024: None, 1536: None}
    requested: set[int] = set()
    for row in range(draw(st.integers(0, 25))):
        address = draw(st.sampled_from(sorted(live)))
        block = live[address]
        if block is None:
            action, live[address], block = Action.ALLOC, row, row
        elif address in requested:
            action, live[address] = Action.FREE_COMPLETED, None
            requested.discard(address)
        else:
            action = draw(st.sampled_from([Action.FREE_REQUESTED, Action.OOM]))
            if action is Action.FREE_REQUESTED:
                requested.add(address)
            else:
                block, address = -1, 0
        is_alloc = action is Action.ALLOC
        values = {
            "action": action,
            "address": address + BASE if action is not Action.OOM else 0,
            "size_bytes": draw(st.integers(0, 2**40)),
            "stream": draw(st.integers(0, 1)),
            "block": block,
            "op": draw(st.integers(-1, 1)),
            "module": draw(st.integers(-1, 0)),
            "category": draw(st.sampled_from(Category)) if is_alloc else Category.UNKNOWN,
            "time_us": row,
        }
        for name, value in values.items():
            columns[name].append(value)
    categories = {c for c, a in zip(columns["category"], columns["action"], strict=True) if a == Action.ALLOC}
    if Category.UNKNOWN not in categories and set(columns["action"]) <= {Action.ALLOC}:
        columns["category"] = [Category.UNKNOWN] * len(columns["action"])  # the only case that is not preserved
    return Trace.build(columns, ops=["aten::mm", "op b"], modules=["layers.0"], stream_ids=[0, 93824992231456])


@given(random_traces())
def test_snapshot_round_trips(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("snapshot") / "job.pickle"
    write_snapshot(trace, path)
    again = trace_from_snapshot(read_snapshot(path))
    assert_same_events(trace, again)
    assert again.segments is not None
    assert len(again.segments.address) == 0


def test_layout_and_oom_free_bytes_round_trip() -> None:
    trace = trace_from_snapshot(a_snapshot())
    exported = snapshot_from_trace(trace)
    assert exported["device_traces"][0][5]["device_free"] == 12345
    assert exported["segments"][0]["allocated_size"] == 512
    assert exported["segments"][0]["blocks"][1]["frames"] == [{"name": "convert", "filename": "<op>", "line": 0}]
    again = trace_from_snapshot(exported)
    assert_same_events(trace, again)
    assert_same_layout(trace, again)
    assert again.header == trace.header


def test_trace_without_layout_has_no_segments() -> None:
    trace = Trace.build({"action": [Action.ALLOC], "size_bytes": [8], "block": [0]})
    assert snapshot_from_trace(trace)["segments"] == []


def test_writes_category_only_with_unknown_one() -> None:
    alone = Trace.build({"action": [Action.ALLOC], "size_bytes": [8], "block": [0], "category": [Category.INPUT]})
    assert "category" not in snapshot_from_trace(alone)["device_traces"][0][0]
    columns = {"action": [Action.SEGMENT_ALLOC, Action.ALLOC], "size_bytes": [2097152, 8], "block": [-1, 1]}
    both = Trace.build({**columns, "category": [Category.UNKNOWN, Category.INPUT]})
    assert [e["category"] for e in snapshot_from_trace(both)["device_traces"][0]] == ["unknown", "input"]


def test_web_viewer_can_unpickle_file(tmp_path: Path) -> None:
    write_snapshot(trace_from_snapshot(a_snapshot()), tmp_path / "job.pickle")
    # The switch of unpickle() in torch/utils/viz/MemoryViz.js.
    known = """APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME LONG1 LONG_BINGET MARK MEMOIZE PROTO
        SETITEMS SHORT_BINUNICODE STOP TUPLE2 APPEND NEWFALSE BINPUT BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE
        TUPLE1 TUPLE3 LONG_BINPUT LIST DICT SETITEM"""
    used = {op.name for op, _, _ in pickletools.genops((tmp_path / "job.pickle").read_bytes())}
    assert used <= set(known.split())


def test_torchs_viewer_accepts_file(tmp_path: Path) -> None:
    memory_viz = pytest.importorskip("torch.cuda._memory_viz")
    write_snapshot(trace_from_snapshot(a_snapshot()), tmp_path / "job.pickle")
    snapshot = pickle.loads((tmp_path / "job.pickle").read_bytes())
    text = memory_viz.trace(snapshot)
    assert "7 entries" in text
    assert f"a = cudaMalloc({BASE}, 2.0MiB)" in text
    assert "b = a[0:1000.0B]" in text
    assert "12.1KiB free in CUDA" in text
    assert "total_allocated: 4.0B" in memory_viz.segsum(snapshot)
    assert memory_viz.memory(snapshot, format_flamegraph=str).splitlines() == [
        "stream_0;inactive;<non-python> 1000",
        "stream_0;inactive;<gaps> 24",
        "stream_0;active_allocated;<op>:0:convert 4",
        "stream_0;active_allocated;<gaps> 508",
        "stream_0;inactive;<non-python> 0",
        "stream_0;inactive;<gaps> 2095616",
    ]
    assert "snapshot.pickle" in memory_viz.trace_plot(snapshot)


# Recorded files ---------------------------------------------------------------------------------------------------


@needs_recordings
@pytest.mark.integration
@pytest.mark.parametrize("path", parameters(RECORDED), ids=lambda path: path.name[:8])
def test_recorded_snapshots_conserve_memory(path: Path, tmp_path: Path) -> None:
    snapshot = read_snapshot(path)
    for device_index, history in enumerate(snapshot["device_traces"]):
        trace = trace_from_snapshot(snapshot, device_index)
        assert len(trace) == len(history)
        assert trace.header["warnings"] == []
        live = live_bytes(trace)
        assert live.min(initial=0) >= 0
        # The blocks live at the end by the events are those of the layout, at the same addresses.
        assert trace.blocks is not None
        allocated = set(trace.blocks.address[trace.blocks.state != BlockState.INACTIVE].tolist())
        assert set(trace.address[trace.live_at(len(trace) - 1)].tolist()) <= allocated
        trace.save(tmp_path / "job.trace")
        assert_same_events(trace, Trace.load(tmp_path / "job.trace"))
        write_snapshot(trace, tmp_path / "job.pickle")
        again = trace_from_snapshot(read_snapshot(tmp_path / "job.pickle"))
        assert_same_events(trace, again)
        assert_same_layout(trace, again)


@needs_recordings
@pytest.mark.integration
def test_histories_have_indexed_number_of_allocations() -> None:
    root = _SHARED / "data" / "snapshots"
    with open(root / "index.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["alloc"] and int(row["n"]) < 3000]
    assert rows
    for row in rows:
        trace = trace_from_snapshot(read_snapshot(root / row["file"]), int(row["dev"]))
        assert int((trace.action == Action.ALLOC).sum()) == int(row["alloc"]), row["file"]


# Hostile files ----------------------------------------------------------------------------------------------------


class Reduces:
    """An object pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def nested(opcode: bytes, depth: int) -> bytes:
    return b"\x80\x04" + b")" + opcode * depth + b"."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "EOFError"),
        (b"not a pickle", "rejected|KeyError|UnpicklingError"),
        (b"PK\x03\x04", "rejected|KeyError|IndexError|Error"),
        (b"cos\nsystem\n(S'false'\ntR.", "the class os.system is rejected"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "the class builtins.eval is rejected"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "the class os.system is rejected"),
        (b"(S'1'\nios\nsystem\n.", "instruction INST is rejected"),
        (b"\x80\x02\x82\x01.", "instruction EXT1 is rejected"),
        (b"P1\n.", "instruction PERSID is rejected"),
        (b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.", "instruction BYTEARRAY8 is rejected"),
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "not a memory snapshot"),  # a memo of 2^31 entries
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.", "Error"),  # BINBYTES8 of 2^63 bytes
        (b"\x80\x04\x8b\xff\xff\xff\x7f.", "Error"),  # LONG4 of 2 GiB
        (nested(b"\x85", 1_000_000), "tuple inside a tuple"),
        (b"\x80\x04}" + nested(b"\x85", 1_000_000)[2:-1] + b"Ns.", "tuple inside a tuple"),  # as the key of a dict
        (b"\x80\x04" + b"]" * 9_000 + b"a" * 8_999 + b".", "not a list of dicts"),
        (b"\x80\x04" + b"(" * 9_000 + b".", "Error"),
        (b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b".", "no snapshot is that dense"),
        (b"\x80\x04" + b"(" * 1_000_000 + b".", "no snapshot is that dense"),
        (b"\x80\x04]" + b"(}}}}e" * 200_000 + b".", "no snapshot is that dense"),
        (b"\x80\x04N" + b"\x94" * 1_000_000 + b".", "no snapshot is that dense"),
        (b"\x80\x04" + b"\x95" + (10**6).to_bytes(8, "little") + b"}" * 10**6 + b".", "no snapshot is that dense"),  # one frame
        (b"\x80\x04}K\x01K\x01s.", "a key that is not text"),
        (b"\x80\x04}(K\x01K\x01u.", "a key that is not text"),
        (b"(I1\nI1\nd.", "a key that is not text"),
        (b"\x80\x04N.", "not a memory snapshot"),
        (b"\x80\x04}.", "not a memory snapshot"),
        (pickle.dumps({"segments": 3}), "'segments' is not a list"),
        (pickle.dumps({"segments": [[]]}), "'segments' is not a list of dicts"),
        (pickle.dumps({"segments": [], "device_traces": {}}), "'device_traces' is not a list"),
        (pickle.dumps({"segments": [], "device_traces": [[1]]}), "'history 0' is not a list of dicts"),
        (pickle.dumps({"segments": [], "allocator_settings": 1}), "'allocator_settings' is not a dict"),
        (pickle.dumps(np.float64(1)), "is rejected"),
    ],
)
def test_rejects_hostile_or_damaged_file(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "x.pickle").write_bytes(content)
    with pytest.raises(TraceFileError, match=reason) as caught:
        read_snapshot(tmp_path / "x.pickle")
    assert "x.pickle" in str(caught.value)
    assert "_dump_snapshot" in str(caught.value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_calls_nothing_in_file(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    for function, argument in ((os.system, f"touch {victim}"), (open, str(victim)), (exec, "raise SystemExit")):
        path = dumped(tmp_path / "x.pickle", {"segments": [Reduces(function, argument)]}, protocol)
        with pytest.raises(TraceFileError, match="is rejected"):
            read_snapshot(path)
    assert not victim.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_reads_plain_data_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    odd = {"segments": [], "annotations": [None, True, -1, 2**70, 1.5, "\u20ac", b"x", (1, 2, 3), (1,), (), {"a": {}}]}
    snapshot = read_snapshot(dumped(tmp_path / "x.pickle", odd, protocol)) if protocol >= 3 else None
    if snapshot is None:  # before protocol 3 bytes are a call of _codecs.encode
        odd["annotations"].remove(b"x")
        snapshot = read_snapshot(dumped(tmp_path / "x.pickle", odd, protocol))
    assert snapshot["annotations"] == odd["annotations"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_reads_past_set(tmp_path: Path, protocol: int) -> None:
    snapshot = {**a_snapshot(), "external_annotations": {1, 2}, "more": frozenset({3})}
    again = read_snapshot(dumped(tmp_path / "x.pickle", snapshot, protocol))
    assert again["device_traces"] == snapshot["device_traces"]


def test_rejects_every_truncation(tmp_path: Path) -> None:
    data = pickle.dumps(a_snapshot())
    for length in range(0, len(data), 7):
        (tmp_path / "x.pickle").write_bytes(data[:length])
        with pytest.raises(TraceFileError):
            read_snapshot(tmp_path / "x.pickle")


@given(st.data())
def test_rejects_or_reads_flipped_byte(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(pickle.dumps(a_snapshot(), protocol=data.draw(st.integers(0, 4))))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("flip") / "x.pickle"
    path.write_bytes(content)
    with contextlib.suppress(TraceFileError):  # any other exception fails the test
        snapshot_from_trace(trace_from_snapshot(read_snapshot(path)))


def test_unpacks_gzip_up_to_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(a_snapshot())))
    assert read_snapshot(path) == a_snapshot()
    path.write_bytes(gzip.compress(bytes(10**7)))
    assert path.stat().st_size < 20_000
    with pytest.raises(TraceFileError, match=r"more than limit_bytes, which is 1\.0 MiB"):
        read_snapshot(path, limit_bytes=2**20)
    path.write_bytes(gzip.compress(pickle.dumps(a_snapshot()))[:-9])
    with pytest.raises(TraceFileError, match="EOFError"):
        read_snapshot(path)


def test_sixteen_kibibytes_cost_little(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle.gz"
    path.write_bytes(gzip.compress(b"\x80\x04}(\x8c\x08segments(" + b"}" * 2**24))
    assert path.stat().st_size < 20_000
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(TraceFileError, match="unpacks to more than 200 times its size"):
        read_snapshot(path)
    seconds, (_, peak_bytes) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1
    assert peak_bytes < 20 * 2**20
    path.write_bytes(b"\x80\x04](" + b"}NNNNNNNN" * 20_000 + b"e.")  # as dense as possible: N pushes None
    with pytest.raises(TraceFileError, match="not a list of dicts"):
        read_snapshot(path)


def test_rejects_large_and_absent_file(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="limit_bytes"):
        read_snapshot(dumped(tmp_path / "x.pickle", a_snapshot()), limit_bytes=100)
    with pytest.raises(TraceFileError, match="does not exist"):
        read_snapshot(tmp_path / "nowhere.pickle")
