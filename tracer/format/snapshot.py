"""PyTorch's memory snapshots (`torch.cuda.memory._snapshot()`, a pickle), read without trust and written without torch.

    read_snapshot(path) -> dict -> trace_from_snapshot(dict) -> Trace
    Trace -> snapshot_from_trace(trace) -> dict; write_snapshot(trace, path) for pytorch.org/memory_viz

    dict = {"segments": [segment, ...], "device_traces": [[entry, ...] a device], "allocator_settings": {...}, ...}
    segment = {device, address, total_size, stream, segment_type, is_expandable, blocks: [block, ...], ...}
    block = {address, size, requested_size, state, frames}
    entry = {action, addr, size, stream, frames, time_us}; "oom" has device_free and no addr

The frames of an entry are the stack with the innermost call first. The reader and the writer of these files in PyTorch are
torch/csrc/cuda/Module.cpp, torch/cuda/_memory_viz.py and torch/utils/viz/MemoryViz.js.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import pickletools
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.core.errors import TraceFileError, UsageError
from vramcast.core.files import atomic_write
from vramcast.core.units import gib
from vramcast.tracer.format.trace import (
    BLOCK_COLUMNS,
    EVENT_COLUMNS,
    NAMED_COLUMNS,
    SEGMENT_COLUMNS,
    Action,
    BlockState,
    Category,
    Trace,
    cast_columns,
    columns_of,
)

READ_LIMIT_BYTES: Final = 2**30  # arbitrary: about 15 million entries; larger files are rejected unread
# A small file must not cost much. measured: 78 public snapshots unpack to 14 to 26 times the size of their gzip file, and
# have at most one object per 12 bytes; a hostile file unpacks to 1,032 times its size, with an object in each byte, which
# takes a hundred.
_MOST_UNPACKED: Final = 200  # arbitrary: multiple of the packed size
_ALWAYS_UNPACKED_BYTES: Final = 2**20  # arbitrary: however small the file
_BYTES_AN_OBJECT: Final = 8  # arbitrary: least bytes of the file per container, mark and memo entry
_FREE_OBJECTS: Final = 10_000  # arbitrary: however small the file

_GZIP_MAGIC: Final = b"\x1f\x8b"  # spec: RFC 1952, 2.3.1
_PICKLE_PROTOCOL: Final = 4  # spec: unpickle() in torch/utils/viz/MemoryViz.js reads 2 to 4
_OP_FILE: Final = "<op>"  # replaces the file name in the frame of an operator
_MODULE_FILE: Final = "<module path>"
_NOT_IN_HISTORIES: Final = ("empty_cache", "context", "read", "write")  # our own actions

# torch writes active_pending_free and documents active_awaiting_free.
_STATES: Final = {
    "active_allocated": BlockState.ACTIVE_ALLOCATED,
    "active_pending_free": BlockState.ACTIVE_PENDING_FREE,
    "active_awaiting_free": BlockState.ACTIVE_PENDING_FREE,
    "inactive": BlockState.INACTIVE,
}
_STATE_NAMES: Final = ("active_allocated", "active_pending_free", "inactive")

# Columns of an entry itself; a stream is still named by its pointer.
_ENTRY_COLUMNS: Final = {
    **{name: EVENT_COLUMNS[name] for name in ("action", "address", "size_bytes", "category", "time_us")},
    **NAMED_COLUMNS,
    "stream": "<i8",
}

Frame: TypeAlias = dict[str, Any]


def read_snapshot(path: str | os.PathLike[str], *, limit_bytes: int = READ_LIMIT_BYTES) -> dict[str, Any]:
    """Return the snapshot in the file `path`. The file may be untrusted: nothing in it is executed.

    Args:
        path: A pickle of PyTorch's memory history, optionally gzipped.
        limit_bytes: Reject a file that is larger, packed or unpacked.
    Returns:
        At least `segments` (list of dicts), `device_traces` (list of lists of dicts) and `allocator_settings` (dict), for
        files of any age.
    Raises:
        TraceFileError: The file is absent, damaged, too large, or asks for more than plain data.
    Limits: The slow unpickler reads the file, because only it can reject classes: about 6 s for 300,000 entries.
    """
    try:
        return _normalised(_BuiltinsUnpickler(_read_file(path, limit_bytes)).load())
    except FileNotFoundError as error:
        raise TraceFileError(f"Snapshot '{path}' does not exist: check the path.") from error
    # The file is untrusted: every error that a damaged one causes in the unpickler means the same.
    except Exception as error:
        reason = (str(error) if isinstance(error, TraceFileError) else f"{type(error).__name__}: {error}").rstrip(" .:")
        raise TraceFileError(
            f"Snapshot '{path}' cannot be read: {reason}. Write it again with torch.cuda.memory._dump_snapshot()."
        ) from error


def read_trace(path: str | os.PathLike[str], device_index: int | None = None) -> Trace:
    """Return the trace in a file: a recorded memory history (pickle, also gzipped), or a trace (.npz).

    Args:
        path: The file, which may be untrusted.
        device_index: One of several devices of a history; default: the one with the most events.

    Returns:
        The trace of one device.

    Raises:
        TraceFileError: The file is absent or damaged.
        UsageError: The history has no such device.

    Example:
        >>> est.trace.save("job.npz")
        >>> trace = vramcast.read_trace("job.npz")
        >>> trace.peak_live() == est.trace.peak_live()
        True
    """
    if Path(path).suffix == ".npz":
        return Trace.load(path)
    snapshot = read_snapshot(path)
    histories = snapshot["device_traces"]
    if device_index is None:
        device_index = max(range(len(histories)), key=lambda i: len(histories[i]), default=0)
    return trace_from_snapshot(snapshot, device_index)


def trace_from_snapshot(
    snapshot: Mapping[str, Any], device_index: int = 0, header: Mapping[str, Any] | None = None,
    earlier: Sequence[Entries] = (),
) -> Trace:  # fmt: skip
    """Return the history of one device in `snapshot` as a trace.

    Args:
        snapshot: The result of `read_snapshot` or `torch.cuda.memory._snapshot()`.
        device_index: The device.
        header: Facts to add to the trace's header: the file holds neither the GPU's name nor torch's version.
        earlier: Parts of the history that were removed from it before.
    Returns:
        Phases are OTHER, operators are the innermost Python function of each stack, modules and categories are unknown
        unless `snapshot_from_trace` wrote the file. header["warnings"] lists what was left out.
    Raises:
        TraceFileError: An entry, segment or block is damaged.
        UsageError: The snapshot has no such device.
    """
    snapshot = _normalised(snapshot)
    histories = snapshot["device_traces"]
    segments = [s for s in snapshot["segments"] if _integer(s, "device", 0) == device_index]
    if not 0 <= device_index < max(len(histories), 1) and not segments:
        raise UsageError(f"Device {device_index} is not in the snapshot: it has {len(histories)}, counted from 0.")
    history = histories[device_index] if 0 <= device_index < len(histories) else ()
    entries = Entries.joined([*earlier, Entries.of(history, device_index)])
    block, n_overwritten = _blocks(entries.columns["action"].tolist(), entries.columns["address"].tolist())
    ids = entries.columns["stream"].tolist()
    streams = {id_: index for index, id_ in enumerate(dict.fromkeys((0, *ids)))}  # in order of appearance
    stream = [streams[id_] for id_ in ids]
    segment_columns, block_columns = _layout_columns(segments, streams)
    facts = {
        "tracer": "snapshot",
        "allocator_settings": snapshot["allocator_settings"],
        "device_index": device_index,
        "oom_device_free_bytes": entries.device_free,
        "warnings": [*_warnings(entries, n_overwritten), *_private_pools(segments)],
    }
    return Trace.build(
        {**entries.columns, "stream": stream, "block": block},
        ops=entries.ops,
        modules=entries.modules,
        header={**facts, **(header or {})},
        stream_ids=list(streams),
        segments=segment_columns,
        blocks=block_columns,
    )


def snapshot_from_trace(trace: Trace) -> dict[str, Any]:
    """Return `trace` in PyTorch's layout, made only of builtins; `segments` is empty without a final layout.

    Rows of EMPTY_CACHE, CONTEXT, READ and WRITE are left out: PyTorch's history has no such entries.
    """
    frames = _frames_of_rows(trace)
    names = [Action(code).name.lower() for code in trace.action.tolist()]
    streams = [trace.stream_ids[index] for index in trace.stream.tolist()]
    columns = (names, trace.address.tolist(), trace.size_bytes.tolist(), streams, frames, trace.time_us.tolist())
    keys = ("action", "addr", "size", "stream", "frames", "time_us")
    entries: list[dict[str, Any]] = [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]
    known_free = iter(trace.header.get("oom_device_free_bytes", ()))
    for entry in entries:
        if entry["action"] == "oom":
            del entry["addr"]
            entry["device_free"] = next(known_free, 0)
    categories = [
        Category(code) if name == "alloc" else Category.UNKNOWN
        for code, name in zip(trace.category.tolist(), names, strict=True)
    ]
    # The web viewer colors by category, but fails (`snapshot.categores`) if no entry at all is "unknown".
    if len({category is Category.UNKNOWN for category in categories}) == 2:
        for entry, category in zip(entries, categories, strict=True):
            entry["category"] = category.name.lower()
    return {
        "segments": _segment_dicts(trace, frames),
        "device_traces": [[entry for entry in entries if entry["action"] not in _NOT_IN_HISTORIES]],
        "allocator_settings": trace.header.get("allocator_settings") or {},
    }


def write_snapshot(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write `trace` as a snapshot that pytorch.org/memory_viz and `torch.cuda._memory_viz` can open.

    Raises:
        TraceFileError: The file cannot be written.
    """
    with atomic_write(path, raises=TraceFileError) as file:
        pickle.dump(snapshot_from_trace(trace), file, protocol=_PICKLE_PROTOCOL)


# Reading ----------------------------------------------------------------------------------------------------------

# The instructions that make plain data. The others import, call or build objects (INST, OBJ, NEWOBJ, BUILD, EXT*, PERSID),
# or allocate memory before there is anything to fill it (BYTEARRAY8).
_PLAIN_DATA: Final = frozenset(
    """PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT
    BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE
    BINUNICODE8 EMPTY_DICT EMPTY_LIST EMPTY_TUPLE EMPTY_SET TUPLE TUPLE1 TUPLE2 TUPLE3 LIST DICT APPEND APPENDS SETITEM
    SETITEMS ADDITEMS FROZENSET GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE""".split()  # noqa: SIM905
)
# Applied only to the results of `find_class`: see there.
_FOR_SETS: Final = frozenset({"GLOBAL", "STACK_GLOBAL", "REDUCE"})


def _refused(name: str, _: pickle._Unpickler) -> None:
    raise pickle.UnpicklingError(f"the pickle instruction {name} is rejected: a snapshot is plain data")


def _counted(load: Callable[[Any], None], unpickler: _BuiltinsUnpickler) -> None:
    unpickler.count()
    load(unpickler)


def _flat_tuple(load: Callable[[Any], None], unpickler: pickle._Unpickler) -> None:
    load(unpickler)
    # hash() of tuples a million deep overruns the C stack: no `except` catches that.
    if any(isinstance(item, tuple) for item in unpickler.stack[-1]):  # type: ignore[attr-defined]
        raise pickle.UnpicklingError("a tuple inside a tuple is rejected: a snapshot has none")


def _named_items(load: Callable[[Any], None], unpickler: Any) -> None:
    stack = unpickler.stack
    keys = stack[-2:-1] if load is pickle._Unpickler.dispatch[pickle.SETITEM[0]] else stack[::2]
    # Ten thousand integers can be chosen so that a dict compares each with all others.
    if any(type(key) is not str for key in keys):
        raise pickle.UnpicklingError("a key that is not text is rejected: a snapshot has none")
    load(unpickler)


def _no_items(unpickler: Any) -> None:
    unpickler.pop_mark()  # the mark of a set: see `find_class`


def _empty_frozenset(unpickler: Any) -> None:
    unpickler.pop_mark()
    unpickler.append(frozenset())


def _frame(unpickler: Any) -> None:
    unpickler.read(8)  # the frame's size: everything is in memory, so the place in the file is always known


def _handler(name: str, code: int) -> Callable[[Any], None]:
    if name in _OWN_HANDLERS:
        return _OWN_HANDLERS[name]
    if name not in _PLAIN_DATA | _FOR_SETS:
        return partial(_refused, name)
    load = pickle._Unpickler.dispatch[code]
    if name.startswith("TUPLE"):
        load = partial(_flat_tuple, load)
    if name in ("SETITEM", "SETITEMS", "DICT"):
        load = partial(_named_items, load)
    return partial(_counted, load) if name in _COUNTED else load


_OWN_HANDLERS: Final[dict[str, Callable[[Any], None]]] = {
    "FRAME": _frame, "ADDITEMS": _no_items, "FROZENSET": _empty_frozenset,
}  # fmt: skip
# Instructions that take fifty bytes of memory or more for one or two bytes of the file.
_COUNTED: Final = frozenset(
    """MARK EMPTY_DICT EMPTY_LIST EMPTY_SET DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3 REDUCE
    MEMOIZE PUT BINPUT LONG_BINPUT""".split()  # noqa: SIM905
)


class _BuiltinsUnpickler(pickle._Unpickler):
    """An unpickler that creates only builtins.

    The C unpickler is ten times faster and could reject classes too. But it trusts the sizes declared in a file: ten bytes
    make it clear 32 GiB for its memo.
    """

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)
        self._made = 0
        super().__init__(self._file)

    def count(self) -> None:
        """Count an object, and reject more objects than the bytes read so far can hold."""
        self._made += 1
        if self._made > _FREE_OBJECTS and self._made * _BYTES_AN_OBJECT > self._file.tell():
            raise pickle.UnpicklingError(f"more than one object in {_BYTES_AN_OBJECT} bytes: no snapshot is that dense")

    dispatch = {ord(op.code): _handler(op.name, ord(op.code)) for op in pickletools.opcodes}  # noqa: RUF012

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for `set`; reject everything else.

        One known file holds a set, pickled as a call of the class. Nothing is read from it, so an empty one is enough; a
        real one would let a small file copy a large list again and again.
        """
        if module in ("builtins", "__builtin__") and name in ("set", "frozenset"):
            return lambda *_: frozenset()
        raise pickle.UnpicklingError(f"the class {module}.{name} is rejected: a snapshot is plain data")


def _read_file(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """Return the bytes of `path`, unpacked: at most `limit_bytes`, and not out of proportion to the packed size."""
    with open(path, "rb") as file:
        known = os.fstat(file.fileno())  # read(n) allocates n bytes before it reads
        data = file.read((min(limit_bytes, known.st_size) if stat.S_ISREG(known.st_mode) else limit_bytes) + 1)
    if data[:2] == _GZIP_MAGIC and len(data) <= limit_bytes:
        proportionate = max(_MOST_UNPACKED * len(data), _ALWAYS_UNPACKED_BYTES)
        with gzip.open(io.BytesIO(data)) as unpacked:
            data = unpacked.read(min(limit_bytes, proportionate) + 1)
        if proportionate < len(data) <= limit_bytes:
            raise TraceFileError(f"it unpacks to more than {_MOST_UNPACKED} times its size, as no snapshot does")
    if len(data) > limit_bytes:
        raise TraceFileError(f"it holds more than limit_bytes, which is {gib(limit_bytes)}")
    return data


def _normalised(snapshot: Any) -> dict[str, Any]:
    """Return `snapshot` in today's layout: the oldest snapshots are the bare list of segments, old ones have no history."""
    if isinstance(snapshot, list):
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, Mapping) or "segments" not in snapshot:
        raise TraceFileError("it is not a memory snapshot, which is a dict with 'segments' or a list of segments")
    histories, settings = snapshot.get("device_traces", []), snapshot.get("allocator_settings", {})
    if not isinstance(histories, list) or not isinstance(settings, dict):
        raise TraceFileError("'device_traces' is not a list, or 'allocator_settings' is not a dict")
    for what, rows in [("segments", snapshot["segments"]), *((f"history {i}", h) for i, h in enumerate(histories))]:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TraceFileError(f"'{what}' is not a list of dicts")
    return {**snapshot, "device_traces": histories, "allocator_settings": settings}


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a history, or of a part of it, as columns; entries of unknown action are counted and left out."""

    columns: dict[str, npt.NDArray[Any]]
    ops: list[str]
    modules: list[str]
    device_free: list[int]
    unknown_actions: Counter[str]

    @classmethod
    def of(cls, history: Sequence[dict[str, Any]], device_index: int) -> Entries:
        """Return the entries of one device.

        Raises:
            TraceFileError: An entry is damaged.
        """
        rows = _Rows(history, range(len(history)), device_index)
        names = rows.column("action", str, repeat(None))
        # Plain numbers: an IntEnum compares three times more slowly, and numpy converts it ten times more slowly.
        codes = {name: int(Action.__members__.get(name.upper(), Action.READ)) for name in set(names)}
        oom, snapshot, read = map(int, (Action.OOM, Action.SNAPSHOT, Action.READ))
        # Accesses refer to blocks; no history has them.
        unknown = Counter(name for name in names if codes[name] >= read)
        if unknown:
            rows = rows.chosen([name not in unknown for name in names])
        action = [codes[name] for name in names if name not in unknown]
        stacks = [*map(dict.get, rows.entries, repeat("frames"))]
        places = [_op_and_module(frames) if frames else (None, None) for frames in stacks] if any(stacks) else ()
        ops, op = _indexed([op for op, _ in places] or len(action) * [None])
        modules, module = _indexed([module for _, module in places] or len(action) * [None])
        nothing = int(Category.UNKNOWN)
        columns: dict[str, Sequence[int]] = {
            "action": action,
            "address": rows.column("addr", int, (None if one < oom else 0 for one in action)),
            "size_bytes": rows.column("size", int, (None if one < snapshot else 0 for one in action)),
            "stream": rows.column("stream", int, repeat(0)),
            "op": op,
            "module": module,
            "category": [_category(name) if name else nothing for name in map(dict.get, rows.entries, repeat("category"))],
            "time_us": rows.column("time_us", int, repeat(0)),
        }
        device_free = rows.chosen([one == oom for one in action]).column("device_free", int, repeat(0))
        return cls(cast_columns(columns, _ENTRY_COLUMNS, "events"), ops, modules, device_free, unknown)

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Entries:
        """Return the parts of one history as one."""
        if len(parts) == 1:
            return parts[0]
        ops: dict[str, int] = {}
        modules: dict[str, int] = {}
        columns: dict[str, list[Any]] = {name: [] for name in parts[0].columns}
        for part in parts:
            for name, column in part.columns.items():
                columns[name].append(column)
            for name, names, table in (("op", part.ops, ops), ("module", part.modules, modules)):
                places = np.array([*(table.setdefault(one, len(table)) for one in names), -1])  # the last one: no name
                columns[name][-1] = places[columns[name][-1]]
        return cls(
            {name: np.concatenate(arrays) for name, arrays in columns.items()}, list(ops), list(modules),
            [free for part in parts for free in part.device_free], sum((part.unknown_actions for part in parts), Counter()),
        )  # fmt: skip

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the entries in PyTorch's form, without their stacks."""
        free = iter(self.device_free)
        columns = [self.columns[name].tolist() for name in ("action", "address", "size_bytes", "stream", "time_us")]
        return [
            {"action": Action(code).name.lower(), "size": size, "stream": stream, "time_us": time_us, "frames": []}
            | ({"device_free": next(free)} if code == Action.OOM else {"addr": address})
            for code, address, size, stream, time_us in zip(*columns, strict=True)
        ]


class _Rows:
    """Entries with their positions in the history, one column at a time."""

    def __init__(self, entries: Sequence[dict[str, Any]], places: Sequence[int], device_index: int) -> None:
        self.entries = entries
        self._places, self._device_index = places, device_index

    def chosen(self, wanted: list[bool]) -> _Rows:
        return _Rows([*compress(self.entries, wanted)], [*compress(self._places, wanted)], self._device_index)

    def column(self, key: str, kind: type, defaults: Iterable[Any]) -> list[Any]:
        """Return the value of every entry under `key`, or its default."""
        try:
            values = [*map(itemgetter(key), self.entries)]
        except KeyError:
            values = [entry.get(key, default) for entry, default in zip(self.entries, defaults, strict=False)]
        if {*map(type, values)} - {kind}:
            at = next(at for at, value in enumerate(values) if type(value) is not kind)
            words = f"'{key}' has type {type(values[at]).__name__}, expected {kind.__name__}"
            raise TraceFileError(f"Entry {self._places[at]} of device {self._device_index} is damaged: {words}.")
        return values


def _warnings(entries: Entries, n_overwritten: int) -> list[str]:
    """Return the warnings about lost entries for readers of the trace."""
    texts = [f"{n} entries of unknown action '{name}' are left out" for name, n in entries.unknown_actions.items()]
    if n_overwritten:
        texts.append(f"{n_overwritten} blocks overlap blocks that were never freed: entries are missing")
    return texts


def _blocks(actions: Sequence[int], addresses: Sequence[int]) -> tuple[list[int], int]:
    """Return, for each event, the row of the ALLOC of its block (-1: none), and the number of blocks that lie on a live
    one.
    """
    # An IntEnum compares three times more slowly.
    alloc, free_requested, free_completed = map(int, (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED))
    live: dict[int, int] = {}  # address -> row of the ALLOC
    block, n_overwritten = [-1] * len(actions), 0
    for row, (action, address) in enumerate(zip(actions, addresses, strict=True)):
        if action == alloc:
            n_overwritten += address in live
            live[address] = block[row] = row
        elif action == free_requested:
            block[row] = live.get(address, -1)
        elif action == free_completed:
            block[row] = live.pop(address, -1)
    return block, n_overwritten


def _indexed(names: Sequence[str | None]) -> tuple[list[str], list[int]]:
    """Return the table of names, in order of appearance, and the position of each name in it; -1: no name."""
    table = {name: place for place, name in enumerate(filter(None, dict.fromkeys(names)))}
    return list(table), [table.get(name, -1) if name else -1 for name in names]


def _category(name: Any) -> int:
    return int(Category.__members__.get(name.upper(), Category.UNKNOWN) if isinstance(name, str) else Category.UNKNOWN)


def _layout_columns(
    segments: Sequence[dict[str, Any]], streams: dict[int, int]
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the columns of `Segments` and `Blocks`; new streams are added to `streams`."""
    segment_rows, block_rows = [], []
    for row, segment in enumerate(segments):
        address, total_size = _integer(segment, "address"), _integer(segment, "total_size")
        stream = streams.setdefault(_integer(segment, "stream", 0), len(streams))
        is_large, is_expandable = segment.get("segment_type") != "small", segment.get("is_expandable") is True
        segment_rows.append((address, total_size, stream, is_large, is_expandable))
        blocks = segment.get("blocks", [])
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise TraceFileError(f"Segment {row} is damaged: 'blocks' is not a list of dicts.")
        for block in blocks:  # blocks tile the segment; only newer files repeat their addresses
            state = block.get("state")
            if not isinstance(state, str) or state not in _STATES:
                raise TraceFileError(f"Segment {row} is damaged: the state of a block is not one of {list(_STATES)}.")
            size_bytes = _integer(block, "size")
            block_rows.append((row, _integer(block, "address", address), size_bytes, _requested(block), _STATES[state]))
            address += size_bytes
    return columns_of(segment_rows, SEGMENT_COLUMNS), columns_of(block_rows, BLOCK_COLUMNS)


def _private_pools(segments: Sequence[dict[str, Any]]) -> list[str]:
    """Return a warning if segments belong to CUDA graphs or torch.cuda.MemPool, because events do not record their pool."""
    n_private = sum(
        tuple(pool) not in ((), (0, 0)) for s in segments if isinstance(pool := s.get("segment_pool_id", ()), tuple)
    )
    return [f"{n_private} segments belong to private pools; a trace does not distinguish them"] if n_private else []


def _requested(block: dict[str, Any]) -> int:
    """Return the requested bytes of a block; old files keep them in its history, the oldest do not keep them."""
    history = block.get("history")
    if "requested_size" not in block and isinstance(history, list) and history and isinstance(history[0], dict):
        return _integer(history[0], "real_size", _integer(block, "size"))
    return _integer(block, "requested_size", _integer(block, "size"))


def _integer(entry: dict[str, Any], key: str, default: int | None = None) -> int:
    """Return entry[key], or `default` if there is none."""
    value = entry.get(key, default)
    if type(value) is not int:
        raise TraceFileError(f"'{key}' has type {type(value).__name__}, expected int")
    return value


def _op_and_module(frames: Any) -> tuple[str | None, str | None]:
    """Return the innermost Python function of a stack, and the module path if this file wrote one."""
    op = module = None
    for frame in frames if isinstance(frames, list) else ():
        name, filename = (frame.get("name"), frame.get("filename")) if isinstance(frame, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(filename, str):
            continue
        if filename == _MODULE_FILE:
            module = name
        elif op is None and (filename.endswith(".py") or filename.startswith("<")):  # otherwise a frame of C++
            op = name
    return op, module


# Writing ----------------------------------------------------------------------------------------------------------


def _frames_of_rows(trace: Trace) -> list[list[Frame]]:
    """Return a stack for every row: its operator, then its module. Equal stacks are one object, which makes the pickle
    small.
    """
    stacks: dict[tuple[int, int], list[Frame]] = {}
    frames: list[list[Frame]] = []
    for op, module in zip(trace.op.tolist(), trace.module.tolist(), strict=True):
        if (op, module) not in stacks:
            stack = [{"name": trace.ops[op], "filename": _OP_FILE, "line": 0}] if op >= 0 else []
            stack += [{"name": trace.modules[module], "filename": _MODULE_FILE, "line": 0}] if module >= 0 else []
            stacks[op, module] = stack
        frames.append(stacks[op, module])
    return frames


def _segment_dicts(trace: Trace, frames: list[list[Frame]]) -> list[dict[str, Any]]:
    """Return the final layout in PyTorch's form; live blocks carry the stack of their ALLOC."""
    if trace.segments is None or trace.blocks is None:
        return []
    live = {int(trace.address[row]): frames[row] for row in trace.live_at(len(trace) - 1).tolist()}
    of_segment: list[list[dict[str, Any]]] = [[] for _ in trace.segments.address]
    for segment, address, size_bytes, requested_bytes, state in trace.blocks.rows():
        of_segment[segment].append(
            {
                "address": address,
                "size": size_bytes,
                "requested_size": requested_bytes,
                "state": _STATE_NAMES[state],
                "frames": [] if state == BlockState.INACTIVE else live.get(address, []),
            }
        )
    return [
        {
            "device": 0,
            "address": address,
            "total_size": total_size,
            "allocated_size": sum(b["size"] for b in held if b["state"] == "active_allocated"),
            "active_size": sum(b["size"] for b in held if b["state"] != "inactive"),
            "requested_size": sum(b["requested_size"] for b in held if b["state"] == "active_allocated"),
            "stream": trace.stream_ids[stream],
            "segment_type": "large" if is_large else "small",
            "segment_pool_id": (0, 0),
            "is_expandable": is_expandable,
            "frames": [],
            "blocks": held,
        }
        for (address, total_size, stream, is_large, is_expandable), held in zip(trace.segments.rows(), of_segment, strict=True)
    ]
