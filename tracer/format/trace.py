"""The trace: one job's requests to the caching allocator of one device, event by event, in columns.

Tracers write it; the simulator and the reports read it; nothing here needs torch. For the file see docs/trace-format.md.

    row  action          size_bytes  block      one row per event, in the order in which the allocator saw them
      0  SEGMENT_ALLOC    2,097,152     -1      the driver gave a segment
      1  ALLOC                4,000      1      a block begins: `block` is its own row, its name from here on
      2  FREE_REQUESTED       4,000      1      the tensor of block 1 died
      3  FREE_COMPLETED       4,000      1      and its memory may be reused (later, if another stream uses it)
      4  FREE_COMPLETED         512     -1      a block older than the trace

A `Trace` is checked on creation, so users of one need no further checks.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief
from vramcast.core.errors import TraceFileError, UsageError
from vramcast.core.files import atomic_write
from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.tracer.format.ledger import Entry
from vramcast.tracer.format.operators import Operator, OperatorKind, OperatorLibrary

FORMAT: Final = "vramcast-trace"
# 1 had no EMPTY_CACHE and no CONTEXT, 2 no READ and no WRITE, 3 only names of operators and modules, and no ledger.
VERSION: Final = 4
_READABLE: Final = (1, 2, 3, 4)
_NAMES_ONLY: Final = 3  # the last version with two tables of names instead of operators
_MAX_DIMENSIONS: Final = 64  # spec: torch 2.11, kMaxDims of TensorIterator; tensors in a file have no more

COURSE: Final = "course"  # in the header: the phases of a training command, from `tracer/program/training_loop.py`
TIME_UP: Final = "its time was up"  # the reason why a course ended begins with this if it was a time limit
MPS_LIMIT: Final = "mps_limit_bytes"  # memory of the card that the job's environment left to it at its end
INTERRUPTED: Final = "its user stopped it"  # the same for Ctrl-C
LOOPS: Final = "loops"  # in the header: where their steps ended (`tracer/program/loops.py`), and who allocated kept blocks
SAVED: Final = "saved"  # in the header: calls of the hooks on saved tensors (`Recorder.saved`)
RANKS: Final = "ranks"  # in the header: the traced ranks of a job with several, and their peaks
PROCESSES: Final = "processes"  # in the header: the memory of each process, if several share the card (`rank_facts.py`)
SERVING: Final = "serving"  # in the header: the accounts of a serving engine (`engine_accounts.py`)
CHANGES: Final = "changes"  # in the header: possible and applied changes of a running program (`applied_change.py`)
SHARDING: Final = "sharding"  # in the header: a rank's part of each module, if there are several ranks (`rank_facts.py`)
CLASSES: Final = "classes"  # in the header: of modules with numbers for names, the child of a Sequential
CIRCUMSTANCES: Final = "circumstances"  # in the header: facts from `tracer/recording/job_context.py`

MIN_BLOCK_BYTES: Final = 512  # spec: kMinBlockSize in c10/core/AllocatorConfig.h, torch 2.10 to 2.15
LOAD_LIMIT_BYTES: Final = 2**30  # arbitrary: 20 million events; a file that declares more is rejected unread
_MAX_TOTAL_BYTES: Final = 2**62  # arbitrary: sums of sizes stay inside int64, rounding included

Array: TypeAlias = npt.NDArray[Any]


class Action(IntEnum):
    """The allocator's action: the nine in PyTorch's memory history, and those that it leaves out.

    READ and WRITE are not actions of the allocator, and are recorded only on request: `tracer/recording/accesses.py`.
    """

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    EMPTY_CACHE = 9  # by torch.cuda.empty_cache(), or by the row's operator; rows of the released segments follow
    CONTEXT = 10  # the process took card memory outside the allocator: context, kernels, a library
    READ = 11  # an operator read a block of `size_bytes`
    WRITE = 12  # an operator wrote to the block, and perhaps also read it


class Phase(IntEnum):
    """The current activity of the job."""

    BUILD = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    OTHER = 5


class Category(IntEnum):
    """The contents of a block."""

    PARAMETER = 0
    GRADIENT = 1
    OPTIMIZER_STATE = 2
    ACTIVATION = 3
    INPUT = 4
    WORKSPACE = 5
    TEMPORARY = 6
    UNKNOWN = 7
    KV_CACHE = 8


class BlockState(IntEnum):
    """The state of a block in the final layout."""

    ACTIVE_ALLOCATED = 0
    ACTIVE_PENDING_FREE = 1
    INACTIVE = 2


EVENT_DEFAULTS: Final[Mapping[str, int]] = {
    "address": 0,
    "stream": 0,
    "step": -1,
    "phase": Phase.OTHER,
    "operator": -1,
    "category": Category.UNKNOWN,
    "time_us": 0,
}


class _Table:
    """Columns of one length, the fields of a dataclass."""

    __slots__ = ()

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each row, in the order of the columns."""
        return zip(*(getattr(self, column.name).tolist() for column in fields(self)), strict=True)  # type: ignore[arg-type]


@brief
@dataclass(frozen=True, slots=True, eq=False)
class Segments(_Table):
    """The segments held by the allocator at the end of the trace, one row each; sizes in bytes."""

    address: npt.NDArray[np.uint64]
    total_size: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int32]
    is_large: npt.NDArray[np.bool_]
    is_expandable: npt.NDArray[np.bool_]


@brief
@dataclass(frozen=True, slots=True, eq=False)
class Blocks(_Table):
    """The blocks that tile those segments, one row each: `segment` is a row of `Segments`, `state` a `BlockState`."""

    segment: npt.NDArray[np.int64]
    address: npt.NDArray[np.uint64]
    size_bytes: npt.NDArray[np.int64]
    requested_bytes: npt.NDArray[np.int64]
    state: npt.NDArray[np.uint8]


@brief
@dataclass(frozen=True, eq=False)
class Trace:
    """One job on one device. Columns have one row per event; see the drawing at the top of this file.

    Attributes:
        action: `Action` of each row.
        address: Device address, 0 if the tracer has none.
        size_bytes: Requested bytes for ALLOC, FREE_*, OOM, READ and WRITE (not yet rounded to a block); true bytes for
            SEGMENT_*.
        stream: Index into `stream_ids`; 0 is the default stream.
        block: Row of the ALLOC that began the block; -1 for other events and for blocks older than the trace.
        step: Training step from 0; -1 before the first.
        phase: `Phase` of each row.
        operator: Index into `operators`, -1 unknown.
        category: `Category` of the block; meaningful only on ALLOC rows.
        time_us: Microseconds on the tracer's clock; 0 if it has none. The order of events is that of the rows. The READ
            and WRITE rows of one operator are adjacent and have the time at which it begins.
        operators: The operators: name, kind, library, module, and shapes if they were recorded.
        ledger: Calls that were not fully answered.
        header: JSON object: format, version, tracer, torch version, device, allocator settings, job, peaks, warnings.
        stream_ids: The driver's name of each stream.
        segments: Final layout, None if the tracer does not know it.
        blocks: Final layout; given exactly when `segments` is.

    Raises:
        TraceFileError: The columns contradict each other or do not fit their dtypes.

    Example:
        >>> alloc, free_requested, free_completed = 0, 1, 2
        >>> small = vramcast.Trace.build(
        ...     {"action": [alloc, free_requested, free_completed], "size_bytes": [4000] * 3, "block": [0] * 3}
        ... )
        >>> small.peak_live()  # 4,096 bytes, first reached in row 0
        (4096, 0)
    """

    action: npt.NDArray[np.uint8]
    address: npt.NDArray[np.uint64]
    size_bytes: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int32]
    block: npt.NDArray[np.int64]
    step: npt.NDArray[np.int32]
    phase: npt.NDArray[np.uint8]
    operator: npt.NDArray[np.int32]
    category: npt.NDArray[np.uint8]
    time_us: npt.NDArray[np.int64]
    operators: list[Operator]
    header: dict[str, Any]
    stream_ids: list[int]
    ledger: tuple[Entry, ...] = ()
    segments: Segments | None = None
    blocks: Blocks | None = None

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.action)

    # -------------------------------------------------------------------------------------------- names
    @cached_property
    def ops(self) -> list[str]:
        """Return the operators' names, each once."""
        return list(dict.fromkeys(one.name for one in self.operators if one.name))

    @cached_property
    def op(self) -> npt.NDArray[np.int64]:
        """Return the index into `ops` of each row, -1 unknown."""
        return self._places(self.ops, [one.name for one in self.operators])

    @cached_property
    def modules(self) -> list[str]:
        """Return the paths of modules, each once."""
        return list(dict.fromkeys(one.module for one in self.operators if one.module))

    @cached_property
    def module(self) -> npt.NDArray[np.int64]:
        """Return the index into `modules` of each row, -1 unknown."""
        return self._places(self.modules, [one.module for one in self.operators])

    def _places(self, table: list[str], names: list[str]) -> npt.NDArray[np.int64]:
        place = {name: number for number, name in enumerate(table)}
        return np.array([*(place.get(name, -1) for name in names), -1])[self.operator]  # index -1 finds the last

    def where(self, is_wanted: Callable[[Operator], bool]) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows whose operator satisfies `is_wanted`.

        Args:
            is_wanted: A predicate of an operator.

        Returns:
            The mask, [rows]; False where the operator is unknown.
        """
        return np.array([*map(is_wanted, self.operators), False])[self.operator]

    @property
    def has_convolutions(self) -> bool:
        """True if a convolution ran."""
        return any(operator.is_convolution for operator in self.operators)

    def is_convolution_workspace(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows whose block is a convolution's workspace.

        Returns:
            The mask, [rows].
        """
        return np.asarray((self.category == Category.WORKSPACE) & self.where(lambda operator: operator.is_convolution))

    def is_search(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the ALLOC rows of trial workspaces, with which cudnn.benchmark searches for a convolution's plan.

        The job goes on without one that does not fit: the search leaves out the plans that need it. In a trace, the
        convolution frees it and then empties the cache.

        Returns:
            The mask, [rows].
        """
        found = np.zeros(len(self), bool)
        emptied = np.flatnonzero((self.action == Action.EMPTY_CACHE) & self.where(lambda operator: operator.is_convolution))
        before = emptied[emptied > 0] - 1
        found[self.block[before[(self.action[before] == Action.FREE_COMPLETED) & (self.block[before] >= 0)]]] = True
        return found & self.where(lambda operator: operator.is_convolution)

    def operator_at(self, row: int) -> Operator:
        """Return the operator of a row; one without a name if it is unknown.

        Args:
            row: Number of the row, from 0.

        Returns:
            The operator.
        """
        at = int(self.operator[row])
        return self.operators[at] if at >= 0 else Operator("")

    # -------------------------------------------------------------------------------------------- making, reading, writing
    @classmethod
    def build(
        cls,
        events: Mapping[str, npt.ArrayLike],
        *,
        operators: Sequence[Operator] = (),
        ops: Sequence[str] = (),
        modules: Sequence[str] = (),
        ledger: Sequence[Entry] = (),
        header: Mapping[str, Any] | None = None,
        stream_ids: Sequence[int] = (0,),
        segments: Mapping[str, npt.ArrayLike] | None = None,
        blocks: Mapping[str, npt.ArrayLike] | None = None,
    ) -> Trace:
        """Return the trace of these columns, cast to their dtypes.

        Args:
            events: `action`, `size_bytes` and `block`, and any other column; the rest is filled with "unknown".
            operators: Table for the column `operator`.
            ops, modules: Alternative to it: tables for the columns `op` and `module`.
            ledger: Calls that were not fully answered.
            header: Other facts, as JSON; format and version are added.
            stream_ids: Table for the column `stream`.
            segments: Columns of the final layout.
            blocks: Columns of the final layout.

        Returns:
            The trace.

        Raises:
            TraceFileError: The columns contradict each other or do not fit their dtypes.
        """
        n = np.size(events.get("action", ()))
        defaults = {name: np.full(n, value) for name, value in EVENT_DEFAULTS.items()}
        given = {name: column for name, column in events.items() if name not in NAMED_COLUMNS}
        if ops or modules:
            named = cast_columns({name: events.get(name, np.full(n, -1)) for name in NAMED_COLUMNS}, NAMED_COLUMNS, "events")
            given["operator"], operators = _joined({"op": ops, "module": modules}, named)
        columns: dict[str, Any] = cast_columns({**defaults, **given}, EVENT_COLUMNS, "events")
        return cls(
            **columns,
            operators=list(operators),
            ledger=tuple(ledger),
            header={**(header or {}), "format": FORMAT, "version": VERSION},
            stream_ids=list(stream_ids),
            segments=None if segments is None else Segments(**cast_columns(segments, SEGMENT_COLUMNS, "segments")),
            blocks=None if blocks is None else Blocks(**cast_columns(blocks, BLOCK_COLUMNS, "blocks")),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, limit_bytes: int = LOAD_LIMIT_BYTES) -> Trace:
        """Return the trace in the file `path`. The file may be untrusted: nothing in it is executed.

        Args:
            path: A file written by `save`.
            limit_bytes: Reject a file that unpacks to more.

        Returns:
            The trace.

        Raises:
            TraceFileError: The file is absent, damaged, of another version or too large.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                return _read_archive(archive, limit_bytes)
        except FileNotFoundError as error:
            raise TraceFileError(f"Trace '{path}' does not exist: check the path.") from error
        # The file is untrusted: every error that a damaged one causes in zipfile, numpy or json means the same.
        except Exception as error:
            reason = (str(error) or type(error).__name__).rstrip(".")
            raise TraceFileError(f"Trace '{path}' cannot be read: {reason}. Record the job again.") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to `path` atomically.

        Args:
            path: The file, written as a ZIP of NumPy arrays (.npz).

        Raises:
            TraceFileError: The file cannot be written.
        """
        texts = {
            "header": {**self.header, "version": VERSION},
            "operators": [
                [one.name, one.module, int(one.kind), int(one.library), one.shapes, one.dtypes] for one in self.operators
            ],
            "ledger": [entry.to_row() for entry in self.ledger],
        }
        arrays: dict[str, Array] = {name: np.frombuffer(json.dumps(value).encode(), np.uint8) for name, value in texts.items()}
        arrays["stream_ids"] = np.array(self.stream_ids, "<u8")
        arrays |= {name: getattr(self, name) for name in EVENT_COLUMNS}
        # Every array is always present, because no checksum covers a ZIP's list of members: a lost array must be noticed.
        arrays["has_layout"] = np.array([self.segments is not None])
        for prefix, table, dtypes in (
            ("segments.", self.segments, SEGMENT_COLUMNS),
            ("blocks.", self.blocks, BLOCK_COLUMNS),
        ):
            arrays |= {prefix + name: getattr(table, name, np.empty(0, dtype)) for name, dtype in dtypes.items()}
        with atomic_write(path, raises=TraceFileError) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    def insert(self, places: npt.ArrayLike, events: Mapping[str, npt.ArrayLike], *, of: npt.ArrayLike | None = None) -> Trace:
        """Return the trace with additional rows.

        Args:
            places: For each new row, the row before which it comes, ascending; `len(self)` is the end.
            events: Columns of the new rows, as for `build`; `block` counts the new rows from 0, so that a new FREE_* can
                refer to a new ALLOC.
            of: Alternative to `block`: for each new row, the row of the ALLOC in this trace that it refers to.

        Returns:
            The longer trace; its columns `block` refer to the new row numbers.

        Raises:
            TraceFileError: The result contradicts itself.
        """
        at = np.asarray(places, np.int64)
        new_row = at + np.arange(len(at))
        moved = np.arange(len(self)) + np.searchsorted(at, np.arange(len(self)), side="right")
        columns: dict[str, Any] = {}
        for name in EVENT_COLUMNS:
            new = np.broadcast_to(np.asarray(events.get(name, EVENT_DEFAULTS.get(name, -1))), at.shape)
            columns[name] = np.insert(getattr(self, name), at, new)
        block = np.asarray(events["block"] if of is None else of, np.int64)
        named = new_row if of is None else moved
        columns["block"] = np.insert(
            np.where(self.block >= 0, moved[np.maximum(self.block, 0)], -1) if len(self) else self.block,
            at,
            np.where(block >= 0, named[np.maximum(block, 0)], -1) if len(named) else block,
        )
        return replace(self, **columns)

    def without_blocks(self, allocs: npt.ArrayLike) -> Trace:
        """Return the trace without the blocks that begin at these rows: all rows that refer to them are left out.

        Args:
            allocs: The ALLOC rows of the blocks.

        Returns:
            The shorter trace.
        """
        kept = ~np.isin(self.block, np.asarray(allocs, np.int64)) | (self.block < 0)
        moved = np.cumsum(kept) - 1
        columns: dict[str, Any] = {name: getattr(self, name)[kept] for name in EVENT_COLUMNS}
        columns["block"] = np.where(columns["block"] >= 0, moved[columns["block"]], -1)
        return replace(self, **columns)

    def peak_live(self) -> tuple[int, int]:
        """Return the peak of live bytes and the first row at which it is reached; (0, -1) if nothing is allocated.

        Each block counts its request rounded up to 512 B. The allocator's own `allocated` is a little higher, because it
        does not always split off the remainder of a block. Blocks older than the trace do not count.

        Returns:
            The peak in bytes, and its row.
        """
        live = self.live(self.rounded_bytes())
        row = int(np.argmax(live)) if len(live) else -1
        return (int(live[row]), row) if row >= 0 and live[row] > 0 else (0, -1)

    def live(self, size_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return, after every row, the sum of `size_bytes` [rows] over the ALLOC rows of the blocks live then.

        Args:
            size_bytes: Bytes of each row, [rows]; only those of ALLOC rows count.

        Returns:
            Live bytes after each row, [rows].
        """
        change = np.where(self.action == Action.ALLOC, size_bytes, 0)
        completed = self._completed()
        change[completed] = -change[self.block[completed]]
        return np.cumsum(change)

    def ends(self) -> npt.NDArray[np.int64]:
        """Return the row at which the block of each ALLOC row is free; `len(self)` if it outlives the trace.

        Returns:
            Rows, [rows]; `len(self)` for rows other than ALLOC.
        """
        ends = np.full(len(self), len(self))
        completed = self._completed()
        ends[self.block[completed]] = completed
        return ends

    def is_access(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the READ and WRITE rows.

        Returns:
            The mask, [rows].
        """
        return np.asarray((self.action == Action.READ) | (self.action == Action.WRITE))

    def is_segment_event(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows about segments or their pages.

        Returns:
            The mask, [rows].
        """
        return np.asarray((self.action >= Action.SEGMENT_ALLOC) & (self.action <= Action.SEGMENT_UNMAP))

    def reserved_bytes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of all segments after every row; segments older than the trace count as 0, and may be released.

        Returns:
            Reserved bytes after each row, [rows].
        """
        gained = (self.action == Action.SEGMENT_ALLOC) | (self.action == Action.SEGMENT_MAP)
        return np.cumsum(np.where(self.is_segment_event(), np.where(gained, self.size_bytes, -self.size_bytes), 0))

    def live_at(self, row: int) -> npt.NDArray[np.int64]:
        """Return the ALLOC rows of the blocks that live right after event `row`.

        Args:
            row: Number of the row, from 0; -1: before the first event.

        Returns:
            The rows, ascending.

        Raises:
            UsageError: The trace has no such row.
        """
        if not -1 <= row < len(self):
            raise UsageError(f"Row {row} is not in the trace: give one from -1 to {len(self) - 1}.")
        return np.flatnonzero((self.action[: row + 1] == Action.ALLOC) & (self.ends()[: row + 1] > row))

    def by_category_at(self, row: int) -> dict[Category, int]:
        """Return the live bytes of every category right after event `row`; their sum is that of `peak_live`.

        Args:
            row: Number of the row, from 0; -1: before the first event.

        Returns:
            Bytes by category, 0 for a category without a live block.

        Raises:
            UsageError: The trace has no such row.
        """
        live = self.live_at(row)
        sizes, categories = self.rounded_bytes()[live], self.category[live]
        return {category: int(sizes[categories == category].sum()) for category in Category}

    def rounded_bytes(self) -> npt.NDArray[np.int64]:
        """Return `size_bytes` rounded as the allocator rounds a request: to a multiple of 512 B, at least one.

        Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp, round_size without roundup_power2_divisions.

        Returns:
            Bytes, [rows].
        """
        return np.maximum(-(-self.size_bytes // MIN_BLOCK_BYTES), 1) * MIN_BLOCK_BYTES

    def _completed(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero((self.action == Action.FREE_COMPLETED) & (self.block >= 0))


def _columns_of_class(table: type) -> dict[str, str]:
    """Return the columns of a table and the dtype of each, from its annotation."""
    arrays = {name: hint for name, hint in get_type_hints(table).items() if get_origin(hint) is np.ndarray}
    return {name: np.dtype(get_args(get_args(hint)[1])[0]).newbyteorder("<").str for name, hint in arrays.items()}


# Column -> dtype, in memory and in the file. Little-endian everywhere because files travel.
EVENT_COLUMNS: Final = _columns_of_class(Trace)
SEGMENT_COLUMNS: Final = _columns_of_class(Segments)
BLOCK_COLUMNS: Final = _columns_of_class(Blocks)
NAMED_COLUMNS: Final[Mapping[str, str]] = {"op": "<i4", "module": "<i4"}  # up to version 3, instead of `operator`


def step_number(step: int) -> int:
    """Return a trace's step, which counts from 0, as people count: from 1, and 0 before the first."""
    return max(step, -1) + 1


def place(trace: Trace, row: int, limit: int = 60) -> str:
    """Return the place of event `row` in the job, in words: step, phase, module, operator."""
    operator, step = trace.operator_at(row), int(trace.step[row])
    words = [f"step {step_number(step)}" if step >= 0 else "before step 1", Phase(trace.phase[row]).name.lower()]
    return ", ".join([*words, *(printable(name, limit) for name in (operator.module, operator.name) if name)])


def columns_of(rows: Sequence[Sequence[Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the columns of a table of that many names, row by row."""
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def cast_columns(columns: Mapping[str, npt.ArrayLike], dtypes: Mapping[str, str], what: str) -> dict[str, Array]:
    """Return `columns` in their dtypes; a value that does not fit is an error, never wrapped."""
    if set(columns) != set(dtypes):
        raise TraceFileError(f"The columns of {what} are {sorted(columns)}, expected {sorted(dtypes)}")
    cast: dict[str, Array] = {}
    for name, values in columns.items():
        try:
            given = values if isinstance(values, np.ndarray) else np.array(values, dtypes[name])
            cast[name] = np.ascontiguousarray(given.astype(dtypes[name], copy=False))
            fits = np.array_equal(cast[name], given)
        except (OverflowError, TypeError, ValueError) as error:
            raise TraceFileError(f"Column '{name}' of {what} does not fit {np.dtype(dtypes[name])}: {error}") from error
        if not fits:
            raise TraceFileError(f"Column '{name}' of {what} has values that do not fit {np.dtype(dtypes[name])}")
    return cast


def _read_archive(archive: zipfile.ZipFile, limit_bytes: int) -> Trace:
    """Return the trace in an opened file; raise any error that a damaged one causes."""
    declared_bytes = sum(member.file_size for member in archive.infolist())
    if declared_bytes > limit_bytes:
        raise TraceFileError(f"it declares {gib(declared_bytes)} unpacked, limit_bytes is {gib(limit_bytes)}")
    header = _read_json(archive, "header", dict)
    if header.get("format") != FORMAT:
        raise TraceFileError(f"its format is {header.get('format')!r}, expected '{FORMAT}'")
    if header.get("version") not in _READABLE:
        readable = " and ".join(map(str, _READABLE))
        raise TraceFileError(
            f"it has version {header.get('version')!r}, this release reads {readable}; a newer vramcast may read it"
        )
    is_named = header["version"] <= _NAMES_ONLY
    own = {name: dtype for name, dtype in EVENT_COLUMNS.items() if name != "operator" or not is_named}
    events: dict[str, Any] = _read_columns(archive, own)
    if is_named:
        tables = {name: _read_json(archive, f"{name}s", list) for name in NAMED_COLUMNS}
        events["operator"], operators = _joined(tables, _read_columns(archive, NAMED_COLUMNS))
    else:
        operators = [_operator_of(row) for row in _read_json(archive, "operators", list)]
    segments = Segments(**_read_columns(archive, SEGMENT_COLUMNS, "segments."))
    blocks = Blocks(**_read_columns(archive, BLOCK_COLUMNS, "blocks."))
    has_layout = _read_array(archive, "has_layout", "|b1").tolist() == [True]
    return Trace(
        **events,
        operators=operators,
        ledger=() if is_named else tuple(Entry.of_row(row) for row in _read_json(archive, "ledger", list)),
        header=header,
        stream_ids=_read_array(archive, "stream_ids", "<u8").tolist(),
        segments=segments if has_layout else None,
        blocks=blocks if has_layout else None,
    )


def _joined(tables: Mapping[str, Sequence[str]], columns: Mapping[str, Array]) -> tuple[npt.NDArray[np.int32], list[Operator]]:
    """Return the column and the table of operators for the given tables and columns of names."""
    for name, table in tables.items():
        _check_names(table)
        _check_range(columns[name], -1, len(table), f"events.{name}")
    (ops, modules), (op, module) = tables.values(), (columns[name].astype(np.int64) for name in tables)
    if len(op) != len(module):
        raise TraceFileError(f"events.module has {len(module)} rows, expected {len(op)}")
    keys, first, inverse = np.unique((op + 1) * (len(modules) + 1) + module + 1, return_index=True, return_inverse=True)
    order = np.argsort(first)  # order of appearance
    pairs = [divmod(int(key), len(modules) + 1) for key in keys[order] if key]  # key 0: neither is known
    operators = [Operator.of(["", *ops][op], ["", *modules][module]) for op, module in pairs]
    place = np.full(len(keys), -1)
    place[order[keys[order] > 0]] = np.arange(len(pairs))
    return place[inverse].astype("<i4"), operators


def _operator_of(row: Any) -> Operator:
    """Return the operator in a row of a file's table; raise any error that a damaged one causes."""
    name, module, kind, library, shapes, dtypes = row
    return Operator(name, module, tuple(map(tuple, shapes)), tuple(dtypes), OperatorKind(kind), OperatorLibrary(library))


def _read_columns(archive: zipfile.ZipFile, dtypes: Mapping[str, str], prefix: str = "") -> dict[str, Array]:
    return {name: _read_array(archive, prefix + name, dtype) for name, dtype in dtypes.items()}


def _read_json(archive: zipfile.ZipFile, name: str, kind: type) -> Any:
    """Return the JSON value of array `name`, which holds text as UTF-8 bytes."""
    value = json.loads(_read_array(archive, name, "|u1").tobytes())
    if not isinstance(value, kind):
        raise TraceFileError(f"'{name}' is not a JSON {'object' if kind is dict else 'list'}")
    return value


def _read_array(archive: zipfile.ZipFile, name: str, dtype: str) -> Array:
    """Return one array. Its declared shape is checked first, because numpy would allocate it before reading."""
    try:
        member = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise TraceFileError(f"the array '{name}' is missing") from None
    # bzip2 and lzma members can unpack without a limit per read; `save` never writes them.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise TraceFileError(f"the array '{name}' is packed by an unknown method {member.compress_type}")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):  # the version that `numpy.savez` writes for plain arrays
            raise TraceFileError(f"an array has .npy version {version}, expected (1, 0)")
        shape, _, found = np.lib.format.read_array_header_1_0(stream)
        data = stream.read()
    if found != np.dtype(dtype) or len(shape) != 1:
        raise TraceFileError(f"the array '{name}' has dtype {found} and shape {shape}, expected {dtype} and one axis")
    if len(data) != shape[0] * found.itemsize:
        raise TraceFileError(f"the array '{name}' declares {shape[0]} values, {len(data)} bytes follow")
    if dtype == "|b1" and data.strip(b"\0\1"):
        raise TraceFileError(f"the array '{name}' has values other than 0 and 1")
    return np.frombuffer(data, dtype)


def _check(trace: Trace) -> None:
    """Raise TraceFileError with the first rule that `trace` breaks."""
    n = len(trace)
    _check_columns(trace, EVENT_COLUMNS, "events", n)
    _check_header(trace)
    limits = {
        "action": (0, len(Action)),
        "phase": (0, len(Phase)),
        "category": (0, len(Category)),
        "stream": (0, len(trace.stream_ids)),
        "operator": (-1, len(trace.operators)),
        "step": (-1, None),
        "size_bytes": (0, None),
    }
    for name, (low, end) in limits.items():
        _check_range(getattr(trace, name), low, end, f"events.{name}")
    # As float64, because a hostile sum would wrap around in int64.
    if trace.size_bytes[trace.action == Action.ALLOC].sum(dtype=np.float64) > _MAX_TOTAL_BYTES:
        raise TraceFileError(f"the sizes of all ALLOC rows sum to more than {_MAX_TOTAL_BYTES} bytes")
    _check_blocks(trace)
    _check_layout(trace)


def _check_columns(table: object, dtypes: Mapping[str, str], what: str, n: int) -> None:
    for name, dtype in dtypes.items():
        column = getattr(table, name)
        if column.dtype != np.dtype(dtype) or column.shape != (n,):
            raise TraceFileError(
                f"column {what}.{name} has dtype {column.dtype} and shape {column.shape}, expected {dtype} and ({n},)"
            )


def _check_range(column: Array, low: int, end: int | None, what: str) -> None:
    wrong = column < low if end is None else (column < low) | (column >= end)
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = f">= {low}" if end is None else f"from {low} to {end - 1}"
        raise TraceFileError(f"{what} is {column[row]} in row {row}, expected {expected}")


def _check_header(trace: Trace) -> None:
    for one in trace.operators:
        _check_names([one.name, one.module, *one.dtypes])
        if len(one.dtypes) != len(one.shapes) or any(len(shape) > _MAX_DIMENSIONS for shape in one.shapes):
            raise TraceFileError(f"operator '{one.name}' has {len(one.shapes)} shapes and {len(one.dtypes)} dtypes")
        if not all(isinstance(n, int) and 0 <= n < 2**63 for shape in one.shapes for n in shape):
            raise TraceFileError(f"a shape of operator '{one.name}' has a dimension that is not an integer from 0 to 2^63 - 1")
    if not all(isinstance(number, int) and 0 <= number < 2**64 for number in trace.stream_ids):
        raise TraceFileError("stream_ids has an item that is not an integer from 0 to 2^64 - 1")
    try:
        json.dumps(trace.header, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TraceFileError(f"the header is not JSON: {error}") from error
    free = trace.header.get("oom_device_free_bytes", [])
    if not isinstance(free, list) or not all(isinstance(size_bytes, int) for size_bytes in free):
        raise TraceFileError("the header's oom_device_free_bytes is not a list of integers")


def _check_names(names: Sequence[Any]) -> None:
    if not all(isinstance(name, str) for name in names):
        raise TraceFileError("the table of operators has an item that is not a string")


def _check_blocks(trace: Trace) -> None:
    """Check that an ALLOC names itself, a free an earlier ALLOC that nothing else has freed, and an access a live one."""
    rows = np.arange(len(trace))
    is_alloc = trace.action == Action.ALLOC
    is_access = trace.is_access()
    is_free = (trace.action == Action.FREE_REQUESTED) | (trace.action == Action.FREE_COMPLETED)
    named = is_free & (trace.block != -1)
    # A reference out of range is already an error; clip it so that it can be looked up with the rest.
    looked_up = np.clip(trace.block, 0, max(len(trace) - 1, 0))
    wrong = (
        (is_alloc & (trace.block != rows))
        | (~is_alloc & ~is_free & ~is_access & (trace.block != -1))
        | ((named | is_access) & ((trace.block < 0) | (trace.block >= rows) | ~is_alloc[looked_up]))
    )
    if wrong.any():
        row = int(np.argmax(wrong))
        name = Action(trace.action[row]).name
        expected = "its own row" if is_alloc[row] else "-1 or an earlier ALLOC row" if is_free[row] else "-1"
        expected = "an earlier ALLOC row" if is_access[row] else expected
        raise TraceFileError(f"events.block is {trace.block[row]} in row {row} ({name}), expected {expected}")
    for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
        freed = np.sort(trace.block[(trace.action == action) & named])
        twice = freed[1:][freed[1:] == freed[:-1]]
        if len(twice):
            raise TraceFileError(f"block {twice[0]} has two {action.name} events, expected one at most")
    late = is_access & (rows > trace.ends()[looked_up])
    if late.any():
        row = int(np.argmax(late))
        raise TraceFileError(f"row {row} is an access to block {trace.block[row]}, which was free by then")


def _check_layout(trace: Trace) -> None:
    segments, blocks = trace.segments, trace.blocks
    if segments is None or blocks is None:
        if segments is not None or blocks is not None:
            raise TraceFileError("the final layout has only one of segments and blocks, expected both or none")
        return
    _check_columns(segments, SEGMENT_COLUMNS, "segments", len(segments.address))
    _check_columns(blocks, BLOCK_COLUMNS, "blocks", len(blocks.address))
    _check_range(segments.total_size, 0, None, "segments.total_size")
    _check_range(segments.stream, 0, len(trace.stream_ids), "segments.stream")
    _check_range(blocks.segment, 0, len(segments.address), "blocks.segment")
    _check_range(blocks.size_bytes, 0, None, "blocks.size_bytes")
    _check_range(blocks.requested_bytes, 0, None, "blocks.requested_bytes")
    _check_range(blocks.state, 0, len(BlockState), "blocks.state")
