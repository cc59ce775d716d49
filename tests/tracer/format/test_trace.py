"""The trace: its counts, its file, and rejected files."""

from __future__ import annotations

import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.core.errors import TraceFileError, UsageError
from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.format.operators import Operator, OperatorKind, OperatorLibrary
from vramcast.tracer.format.trace import (
    BLOCK_COLUMNS,
    EVENT_COLUMNS,
    FORMAT,
    MIN_BLOCK_BYTES,
    SEGMENT_COLUMNS,
    VERSION,
    Action,
    BlockState,
    Category,
    Phase,
    Trace,
)

from ..traces import without_accesses

# A segment, three blocks, the second freed before the third begins, and a free of a block older than the trace.
#
# row          0    1      2     3     4     5    6
# rounded           1,024  512               512
# live after   0    1,024  1,536 1,536 1,024 1,536 1,536     peak 1,536, first reached at row 2
SMALL: dict[str, Any] = {
    "action": [
        Action.SEGMENT_ALLOC,
        Action.ALLOC,
        Action.ALLOC,
        Action.FREE_REQUESTED,
        Action.FREE_COMPLETED,
        Action.ALLOC,
        Action.FREE_COMPLETED,
    ],
    "address": [2**47, 2**47, 2**47 + 1024, 2**47 + 1024, 2**47 + 1024, 2**47 + 1024, 4096],
    "size_bytes": [2097152, 513, 1, 1, 1, 512, 9999],
    "block": [-1, 1, 2, 2, 2, 5, -1],
    "step": [-1, -1, 0, 0, 0, 1, 1],
    "phase": [Phase.BUILD, Phase.BUILD, *[Phase.FORWARD] * 5],
    "operator": [-1, 0, 1, 2, 2, 1, -1],
    "category": [
        Category.UNKNOWN,
        Category.PARAMETER,
        Category.ACTIVATION,
        Category.UNKNOWN,
        Category.UNKNOWN,
        Category.ACTIVATION,
        Category.UNKNOWN,
    ],
    "time_us": [0, 1, 2, 3, 4, 5, 6],
}
OPERATORS = [
    Operator.of("aten::empty"),
    Operator.of("aten::mm", "layers.0", ((2, 3), (3,)), ("float32",) * 2),
    Operator("", "layers.0"),
]
LEDGER = (Entry(CallHandling.NOOP, "cublasCreate_v2", 2), Entry.of(CallHandling.BOUNDED, Code.CUBLASLT_WORKSPACE, 1, 99))
SEGMENTS: dict[str, Any] = {
    "address": [2**47],
    "total_size": [2097152],
    "stream": [0],
    "is_large": [False],
    "is_expandable": [False],
}
BLOCKS: dict[str, Any] = {
    "segment": [0, 0, 0],
    "address": [2**47, 2**47 + 1024, 2**47 + 1536],
    "size_bytes": [1024, 512, 2097152 - 1536],
    "requested_bytes": [513, 512, 0],
    "state": [BlockState.ACTIVE_ALLOCATED, BlockState.ACTIVE_ALLOCATED, BlockState.INACTIVE],
}


def small_trace(**changes: Any) -> Trace:
    return Trace.build(
        {**SMALL, **changes},
        operators=OPERATORS,
        ledger=LEDGER,
        header={"tracer": "test", "torch": "2.11.0", "warnings": ["invented"]},
        segments=SEGMENTS,
        blocks=BLOCKS,
    )


def assert_same(left: Trace, right: Trace) -> None:
    for name in EVENT_COLUMNS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), name)
    for name in ("operators", "ledger", "header", "stream_ids"):
        assert getattr(left, name) == getattr(right, name), name
    for table, columns in (("segments", SEGMENT_COLUMNS), ("blocks", BLOCK_COLUMNS)):
        ours, theirs = getattr(left, table), getattr(right, table)
        assert (ours is None) == (theirs is None), table
        for name in columns if ours is not None else ():
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)


@st.composite
def random_traces(draw: st.DrawFn) -> Trace:
    """Draw a job: blocks begin and end in any order, some frees are only requested, some belong to older blocks."""
    columns: dict[str, list[int]] = {name: [] for name in EVENT_COLUMNS}
    live: list[int] = []

    def add(action: Action, size_bytes: int, block: int) -> None:
        row = len(columns["action"])
        values = {
            "action": action,
            "address": draw(st.integers(0, 2**64 - 1)),
            "size_bytes": size_bytes,
            "stream": draw(st.integers(0, 1)),
            "block": row if action is Action.ALLOC else block,
            "step": draw(st.integers(-1, 3)),
            "phase": draw(st.sampled_from(Phase)),
            "operator": draw(st.integers(-1, 2)),
            "category": draw(st.sampled_from(Category)),
            "time_us": draw(st.integers(-(2**63), 2**63 - 1)),
        }
        for name, value in values.items():
            columns[name].append(value)
        if action is Action.ALLOC:
            live.append(row)

    for _ in range(draw(st.integers(0, 20))):
        kind = draw(st.sampled_from(["alloc", "free", "older", "other", "access"]))
        size_bytes = draw(st.integers(0, 2**40))
        if kind == "alloc":
            add(Action.ALLOC, size_bytes, -1)
        elif kind == "free" and live:
            block = live.pop(draw(st.integers(0, len(live) - 1)))
            add(Action.FREE_REQUESTED, columns["size_bytes"][block], block)
            if draw(st.booleans()):
                add(Action.FREE_COMPLETED, columns["size_bytes"][block], block)
        elif kind == "access" and live:
            block = live[draw(st.integers(0, len(live) - 1))]
            add(draw(st.sampled_from([Action.READ, Action.WRITE])), columns["size_bytes"][block], block)
        elif kind == "older":
            add(Action.FREE_COMPLETED, size_bytes, -1)
        else:
            add(draw(st.sampled_from([a for a in Action if Action.SEGMENT_ALLOC <= a < Action.READ])), size_bytes, -1)
    return Trace.build(columns, ops=["a", "b\u20ac"], modules=["m.0"], stream_ids=[0, 2**63], header={"job": {"x": [1]}})


def live_by_hand(trace: Trace) -> list[dict[int, int]]:
    """Return, after each row, the live blocks and their rounded sizes, computed the slow way."""
    states: list[dict[int, int]] = []
    live: dict[int, int] = {}
    for row in range(len(trace)):
        if trace.action[row] == Action.ALLOC:
            live[row] = max(512, -(-int(trace.size_bytes[row]) // 512) * 512)
        elif trace.action[row] == Action.FREE_COMPLETED:
            live.pop(int(trace.block[row]), None)
        states.append(dict(live))
    return states


# Counts ----------------------------------------------------------------------------------------------


def test_peak_sums_rounded_live_blocks() -> None:
    assert small_trace().peak_live() == (1536, 2)


def test_trace_without_allocations_has_no_peak() -> None:
    assert Trace.build({"action": [], "size_bytes": [], "block": []}).peak_live() == (0, -1)
    only_a_segment = Trace.build({"action": [Action.SEGMENT_ALLOC], "size_bytes": [2097152], "block": [-1]})
    assert only_a_segment.peak_live() == (0, -1)


def test_live_blocks_are_begun_and_not_freed() -> None:
    trace = small_trace()
    assert [trace.live_at(row).tolist() for row in range(-1, 7)] == [
        [],
        [],
        [1],
        [1, 2],
        [1, 2],  # free_requested: another stream may still read it
        [1],
        [1, 5],
        [1, 5],  # the free of an older block
    ]


@pytest.mark.parametrize("row", [-2, 7])
def test_rejects_row_outside_trace(row: int) -> None:
    with pytest.raises(UsageError, match="from -1 to 6"):
        small_trace().live_at(row)


def test_splits_live_bytes_by_category() -> None:
    split = small_trace().by_category_at(6)
    assert {category: size for category, size in split.items() if size} == {
        Category.PARAMETER: 1024,
        Category.ACTIVATION: 512,
    }
    assert list(split) == list(Category)


@given(random_traces())
def test_fast_counts_equal_slow_ones(trace: Trace) -> None:
    states = live_by_hand(trace)
    for row, live in enumerate(states):
        assert trace.live_at(row).tolist() == sorted(live)
        assert sum(trace.by_category_at(row).values()) == sum(live.values())
    peak_bytes, row = trace.peak_live()
    assert peak_bytes == max((sum(live.values()) for live in states), default=0)
    assert peak_bytes == (sum(states[row].values()) if row >= 0 else 0)


# The file ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(random_traces())
def test_saved_trace_round_trips(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("trace") / "job.trace"
    trace.save(path)
    assert_same(trace, Trace.load(path))


def test_final_layout_round_trips(tmp_path: Path) -> None:
    small_trace().save(tmp_path / "job.npz")
    assert_same(small_trace(), Trace.load(tmp_path / "job.npz"))


def test_numpy_alone_opens_file(tmp_path: Path) -> None:
    small_trace().save(tmp_path / "job.npz")
    with np.load(tmp_path / "job.npz", allow_pickle=False) as arrays:
        assert json.loads(bytes(arrays["header"]))["format"] == FORMAT
        mm = ["aten::mm", "layers.0", OperatorKind.MATMUL, OperatorLibrary.CUBLAS, [[2, 3], [3]], ["float32", "float32"]]
        assert json.loads(bytes(arrays["operators"]))[1] == mm
        assert json.loads(bytes(arrays["ledger"]))[0] == ["noop", "{}", "cublasCreate_v2", 2, 0]
        np.testing.assert_array_equal(arrays["size_bytes"], SMALL["size_bytes"])


def test_document_lists_every_array() -> None:
    document = (Path(__file__).parents[3] / "docs" / "trace-format.md").read_text()
    tables = {"": EVENT_COLUMNS, "segments.": SEGMENT_COLUMNS, "blocks.": BLOCK_COLUMNS}
    for prefix, columns in tables.items():
        for name, dtype in columns.items():
            assert f"| `{prefix}{name}` | `{dtype.replace('|', '')}` |" in document, prefix + name
    assert f"version {VERSION}" in document


def test_equal_traces_make_equal_files(tmp_path: Path) -> None:
    small_trace().save(tmp_path / "a")
    small_trace().save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_failed_save_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.npz"
    path.write_bytes(b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(TraceFileError, match="No space left"):
        small_trace().save(path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("job.npz", b"old")]


# Rejected files --------------------------------------------------------------------------------------------------


def rewritten(path: Path, **arrays: Any) -> Path:
    """Return a copy of the file with some arrays replaced, or left out where None."""
    with np.load(path, allow_pickle=False) as old:
        kept = {name: old[name] for name in old.files}
    out = path.with_name("hostile.npz")
    with open(out, "wb") as file:
        np.savez_compressed(file, **{n: a for n, a in {**kept, **arrays}.items() if a is not None})
    return out


def as_array(value: object) -> np.ndarray[Any, Any]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_reads_older_versions(tmp_path: Path, version: int) -> None:
    (tmp_path / "job.npz").write_bytes((Path(__file__).parent / "data" / "trace-v3.npz").read_bytes())
    header = {"format": FORMAT, "version": version}
    old = Trace.load(rewritten(tmp_path / "job.npz", header=as_array(header)))
    assert old.header == header
    assert [(one.name, one.module, one.kind, one.shapes) for one in old.operators] == [
        ("aten::empty", "", OperatorKind.OTHER, ()),
        ("aten::mm", "layers.0", OperatorKind.MATMUL, ()),
        ("", "layers.0", OperatorKind.OTHER, ()),
    ]
    assert old.operator.tolist() == SMALL["operator"]
    assert (old.ops, old.modules) == (["aten::empty", "aten::mm"], ["layers.0"])
    old.save(tmp_path / "new.npz")
    assert Trace.load(tmp_path / "new.npz").header["version"] == VERSION


def test_joins_two_tables_of_names() -> None:
    columns = {name: column for name, column in SMALL.items() if name != "operator"}
    named = {"op": [-1, 0, 1, -1, -1, 1, -1], "module": [-1, -1, 0, 0, 0, 0, -1]}
    trace = Trace.build({**columns, **named}, ops=["aten::empty", "aten::mm"], modules=["layers.0"])
    assert trace.operator.tolist() == SMALL["operator"]
    assert (trace.op.tolist(), trace.module.tolist()) == (named["op"], named["module"])
    assert [trace.operator_at(row).name for row in (0, 2)] == ["", "aten::mm"]
    assert trace.where(lambda operator: operator.kind is OperatorKind.MATMUL).tolist() == [row in (2, 5) for row in range(7)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    small_trace().save(tmp_path / "job.npz")
    return tmp_path / "job.npz"


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"header": as_array({"format": "other", "version": 1})}, "format is 'other'"),
        ({"header": as_array({"format": FORMAT, "version": 5})}, "version 5, this release reads 1"),
        ({"header": as_array([1])}, "not a JSON object"),
        ({"header": np.frombuffer(b"{" * 9, np.uint8)}, "Expecting property name"),
        ({"header": np.frombuffer(b"[" * 10**5, np.uint8)}, "recursion"),
        ({"operators": as_array({})}, "'operators' is not a JSON list"),
        ({"operators": as_array([[1, "", 0, 0, [], []]] * 3)}, "not a string"),
        ({"operators": as_array([["mm", "", 99, 0, [], []]] * 3)}, "99 is not a valid OperatorKind"),
        ({"operators": as_array([["mm", "", 0, 0, [[1]], []]] * 3)}, "has 1 shapes and 0 dtypes"),
        ({"operators": as_array([["mm", "", 0, 0, [[-1]], ["int8"]]] * 3)}, "a dimension that is not an integer"),
        ({"operators": as_array([["mm", "", 0]] * 3)}, "not enough values"),
        ({"ledger": as_array([["noop", "{}", 5, 1, 1]])}, "a row of the ledger"),
        ({"ledger": as_array([["paid", "{}", "x", 1, 1]])}, "'paid' is not a valid CallHandling"),
        ({"header": None}, "'header' is missing"),
        ({"block": None}, "'block' is missing"),
        ({"blocks.state": None}, "'blocks.state' is missing"),
        ({"step": np.zeros(6, "<i4")}, r"events.step has .* shape \(6,\), expected <i4 and \(7,\)"),
        ({"step": np.zeros((7, 1), "<i4")}, "one axis"),
        ({"step": np.zeros(7, "<i8")}, "'step' has dtype int64"),
        ({"step": np.zeros(7, ">i4")}, "'step' has dtype >i4"),
        ({"block": np.array([-1, 1, 2, 7, 2, 5, -1])}, r"block is 7 in row 3 \(FREE_REQUESTED\)"),
        ({"block": np.array([-1, 1, 2, 0, 2, 5, -1])}, "block is 0 in row 3 .* an earlier ALLOC row"),
        ({"block": np.array([-1, 1, 2, 5, 2, 5, -1])}, "block is 5 in row 3"),
        ({"block": np.array([-1, 1, 2, -(2**63), 2, 5, -1])}, "in row 3"),
        ({"block": np.array([-1, 1, 1, 2, 2, 5, -1])}, r"block is 1 in row 2 \(ALLOC\), expected its own row"),
        ({"block": np.array([1, 1, 2, 2, 2, 5, -1])}, r"in row 0 \(SEGMENT_ALLOC\), expected -1"),
        ({"block": np.array([-1, 1, 2, 2, 2, 5, 2])}, "block 2 has two FREE_COMPLETED"),
        ({"operator": np.array([3] * 7, "<i4")}, "operator is 3 in row 0, expected from -1 to 2"),
        ({"stream": np.ones(7, "<i4")}, "stream is 1"),
        ({"action": np.full(7, 13, "u1")}, "action is 13"),
        ({"action": np.array([11, 0, 0, 1, 2, 0, 8], "u1")}, r"block is -1 in row 0 \(READ\), expected an earlier ALLOC row"),
        ({"action": np.array([3, 0, 0, 2, 12, 0, 8], "u1")}, "row 4 is an access to block 2, which was free by then"),
        ({"category": np.full(7, 9, "u1")}, "category is 9"),
        ({"size_bytes": np.array([-1] * 7)}, "size_bytes is -1"),
        ({"size_bytes": np.full(7, 2**62)}, "sum to more"),
        ({"blocks.segment": np.array([0, 0, 1])}, "blocks.segment is 1"),
        ({"blocks.state": np.full(3, 3, "u1")}, "blocks.state is 3"),
        ({"segments.is_large": np.array([2], "u1").view(bool)}, "values other than 0 and 1"),
        ({"segments.is_large": np.zeros(2, bool)}, "segments.is_large has"),
        ({"has_layout": None}, "'has_layout' is missing"),
        ({"segments.total_size": np.array([-1])}, "segments.total_size is -1"),
        ({"step": np.array([{}] * 7, dtype=object)}, "'step' has dtype object"),
    ],
)
def test_rejects_file_and_names_broken_rule(saved: Path, arrays: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceFileError, match=reason) as caught:
        Trace.load(rewritten(saved, **arrays))
    assert "hostile.npz" in str(caught.value)
    assert "Record the job again" in str(caught.value)


def test_accesses_round_trip_and_can_be_removed(tmp_path: Path) -> None:
    plain = small_trace()
    # Row 2 begins a block, which row 3 is about to free.
    accessed = plain.insert(
        [2, 3, 3], {"action": [Action.READ, Action.READ, Action.WRITE], "size_bytes": [5, 5, 5]}, of=[1, 1, 2]
    )
    assert accessed.block[accessed.is_access()].tolist() == [1, 1, 3]
    accessed.save(tmp_path / "job.npz")
    loaded = Trace.load(tmp_path / "job.npz")
    assert_same(loaded, accessed)
    assert_same(without_accesses(loaded), plain)
    assert loaded.peak_live()[0] == plain.peak_live()[0]


def test_rejects_every_truncation(saved: Path) -> None:
    data = saved.read_bytes()
    for length in range(0, len(data) - 1, 37):
        saved.write_bytes(data[:length])
        with pytest.raises(TraceFileError):
            Trace.load(saved)


@given(st.data())
def test_flipped_byte_is_rejected_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("flip") / "job.npz"
    small_trace().save(path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        loaded = Trace.load(path)
    except TraceFileError:
        return
    assert_same(loaded, small_trace())  # zip checks its content, so only unused bytes can change


def test_rejects_zip_bomb_unread(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.npy", bytes(10**7))
    assert bomb.stat().st_size < 20_000
    with pytest.raises(TraceFileError, match="limit_bytes"):
        Trace.load(bomb, limit_bytes=10**6)


def test_rejects_overlong_array_declaration(saved: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": (10**15,)})
    out = saved.with_name("lying.npz")
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, header.getvalue() if name == "step.npy" else old.read(name))
    with pytest.raises(TraceFileError, match="declares 1000000000000000 values"):
        Trace.load(out)


def test_rejects_unusual_packing(saved: Path) -> None:
    out = saved.with_name("lzma.npz")
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(TraceFileError, match="unknown method"):
        Trace.load(out)


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip", b"\x80\x04cos\nsystem\n(S'false'\ntR."])
def test_rejects_other_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(TraceFileError, match="cannot be read"):
        Trace.load(tmp_path / "x")


def test_names_absent_file(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="does not exist"):
        Trace.load(tmp_path / "nowhere.npz")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"action": np.full(7, 300)}, "'action' of events has values that do not fit uint8"),
        ({"step": [2**31] * 7}, "'step' of events does not fit int32"),
        ({"weight": [0] * 7}, "weight"),
        ({"step": [0]}, r"shape \(1,\)"),
    ],
)
def test_rejects_columns_that_do_not_fit(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceFileError, match=reason):
        small_trace(**changes)


def test_rejects_header_that_is_not_json() -> None:
    with pytest.raises(TraceFileError, match="not JSON"):
        Trace.build({"action": [], "size_bytes": [], "block": []}, header={"peak": float("nan")})


def test_long_trace_takes_seconds(tmp_path: Path) -> None:
    """Prints its times (pytest -s); machines differ too much to assert them."""
    n = 300_000  # three rows per block: alloc, free_requested, free_completed
    begins = np.arange(0, n, 3)
    trace = Trace.build(
        {
            "action": np.tile([Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED], n // 3),
            "address": np.repeat(np.random.default_rng(0).integers(0, 2**47, n // 3), 3),
            "size_bytes": np.repeat(np.random.default_rng(1).integers(1, 2**30, n // 3), 3),
            "block": np.repeat(begins, 3),
            "time_us": np.arange(n) * 7,
        }
    )
    times = {"start": time.perf_counter()}
    trace.save(tmp_path / "long.npz")
    times["save"] = time.perf_counter()
    loaded = Trace.load(tmp_path / "long.npz")
    times["load"] = time.perf_counter()
    peak_bytes, row = loaded.peak_live()
    loaded.by_category_at(row)
    times["peak"] = time.perf_counter()
    stamps = list(times.items())
    spans = [f"{stamps[i + 1][0]} {stamps[i + 1][1] - stamps[i][1]:.2f} s" for i in range(3)]
    print(f"{n:,} events: {', '.join(spans)}, {(tmp_path / 'long.npz').stat().st_size:,} bytes")
    # One block lives at a time, so the peak is the largest block.
    assert peak_bytes == -(-int(trace.size_bytes.max()) // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
