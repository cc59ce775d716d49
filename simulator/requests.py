"""The requests of a job to the allocator, in order and in columns: a trace without the allocator's answers.

row  kind    size_bytes  stream  block
  0  MALLOC       4,000       0      -   a block begins: this row is its name
  1  MALLOC   2,000,000       1      -
  2  FREE             -       -      0   block 0 is freed and may be reused at once
  3  RETIRE           -       -      1   block 1 is freed, but another stream may still use it ...
  4  COMPLETE         -       -      1   ... until here
  5  EMPTY            -       -      -   torch.cuda.empty_cache()
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.simulator.rules import RULES, AllocatorRules
from vramcast.tracer.format.trace import Action, BlockState, Trace

_MAX_STREAMS: Final = 1 << 16  # arbitrary: more than any process has; a pool keeps a list for each
_MAX_POOLS: Final = 1 << 16  # arbitrary: more than any process has


class RequestKind(IntEnum):
    """The kind of a request; `block` holds the row of the MALLOC that it refers to."""

    MALLOC = 0
    FREE = 1
    RETIRE = 2
    COMPLETE = 3
    EMPTY = 4
    RECORD = 5  # work on `stream` uses the block too
    BEGIN_POOL = 6  # of a CUDA graph; `size_bytes` is the pool's number, from 1
    END_POOL = 7
    RELEASE_POOL = 8
    TRY = 9  # a MALLOC that may fail: the job continues without it
    TAKE = 10  # the process takes `size_bytes` of the card outside the allocator, permanently


@brief
@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Columns of equal length, int64 except `kind` (uint8) and `stream` (int32).

    Attributes:
        kind: `RequestKind` of each row.
        size_bytes: Bytes of a MALLOC, the number of a pool.
        stream: From 0, the default stream.
        block: Row of the MALLOC that the row refers to, -1 for none.
        source: Row of the trace that the row comes from, -1 for none.
        waits: Whether retired blocks wait for COMPLETE; if not, they are free at the next MALLOC.
        rules: Rules of the release whose allocator serves them.
    """

    kind: npt.NDArray[np.uint8]
    size_bytes: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int32]
    block: npt.NDArray[np.int64]
    source: npt.NDArray[np.int64]
    waits: bool = True
    rules: AllocatorRules = RULES

    def __post_init__(self) -> None:
        # The compiled engine does not repeat these checks.
        kind, rows = self.kind, np.arange(len(self.kind))
        asks = (kind == RequestKind.MALLOC) | (kind == RequestKind.TRY)
        about = np.isin(kind, (RequestKind.FREE, RequestKind.RETIRE, RequestKind.COMPLETE, RequestKind.RECORD))
        named = np.where(about & (self.block >= 0) & (self.block < rows), self.block, 0)
        for wrong, what in (
            (kind > max(RequestKind), "has an unknown kind"),
            (self.size_bytes < 0, "has a negative size"),
            ((self.stream < 0) | (self.stream >= _MAX_STREAMS), f"has a stream outside of 0 to {_MAX_STREAMS - 1}"),
            (about & ((self.block < 0) | (self.block >= rows)), "refers to no earlier request"),
            (about & ~asks[named] if len(asks) else about, "refers to a request that allocates no memory"),
            (~about & (self.block != -1), "names a block, but its kind takes none"),
        ):
            if wrong.any():
                raise UsageError(f"Request {int(np.argmax(wrong))} {what}: requests come from Requests.of(trace).")
        self._check_pools()

    def _check_pools(self) -> None:
        users: dict[int, int] = {}
        recording: list[int] = []
        for row in np.flatnonzero((self.kind >= RequestKind.BEGIN_POOL) & (self.kind <= RequestKind.RELEASE_POOL)).tolist():
            kind, pool = self.kind[row], int(self.size_bytes[row])
            if kind == RequestKind.BEGIN_POOL and 0 < pool <= _MAX_POOLS and pool not in recording:
                users[pool] = users.get(pool, 0) + 1
                recording.append(pool)
            elif kind == RequestKind.END_POOL and pool in recording:
                recording.remove(pool)
            elif kind == RequestKind.RELEASE_POOL and users.get(pool, 0) > 0:
                users[pool] -= 1
            else:
                raise UsageError(f"Request {row} begins, ends or releases pool {pool} out of turn: begin, end, release.")

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def n_pools(self) -> int:
        """Return the largest number of a private pool plus one."""
        return (
            int(self.size_bytes[(self.kind >= RequestKind.BEGIN_POOL) & (self.kind <= RequestKind.RELEASE_POOL)].max(initial=0))
            + 1
        )

    @classmethod
    def of(cls, trace: Trace) -> Requests:
        """Return the requests of the job in `trace`.

        Blocks older than the trace are requested first, in order of address, because their true order is unknown.

        The workspace of a convolution is a TRY: without it, PyTorch takes cuDNN's next plan, which needs less. The
        workspace of that plan is not in the trace and assumed to be empty. A trace that does not mark
        torch.cuda.empty_cache() is assumed to call it wherever segments were released without a new one right after
        (otherwise the driver was full, and the allocator made room by itself).
        """
        action, block = trace.action, trace.block
        n = len(trace)
        rows = np.arange(n)
        is_malloc = action == Action.ALLOC
        is_empty = _empty_cache_rows(trace)
        # A free is one request if there is no allocation between its two rows.
        clock = np.cumsum(is_malloc | is_empty)
        completed_at = np.full(n + 1, -1)
        requested_at = np.full(n + 1, -1)
        known = block >= 0
        for at, wanted in ((completed_at, Action.FREE_COMPLETED), (requested_at, Action.FREE_REQUESTED)):
            found = (action == wanted) & known
            at[block[found]] = rows[found]
        requested = (action == Action.FREE_REQUESTED) & known
        end = completed_at[np.where(requested, block, n)]
        at_once = requested & (end >= 0) & (clock[end] == clock)
        retired = requested & ~at_once
        completed = (action == Action.FREE_COMPLETED) & known
        start = requested_at[np.where(completed, block, n)]
        begun = completed & (start >= 0)
        late = begun & (clock[start] != clock)
        alone = completed & ~begun

        kind = np.full(n, 255, np.uint8)
        for mask, value in (
            (is_malloc, RequestKind.MALLOC),
            (is_malloc & trace.is_convolution_workspace(), RequestKind.TRY),
            (at_once | alone, RequestKind.FREE),
            (retired, RequestKind.RETIRE),
            (late, RequestKind.COMPLETE),
            (is_empty, RequestKind.EMPTY),
            (action == Action.CONTEXT, RequestKind.TAKE),
        ):
            kind[mask] = value
        kept = np.flatnonzero(kind != 255)
        has_size = is_malloc | (action == Action.CONTEXT)
        older_bytes, older_streams, older_frees = _older_blocks(trace)
        n_older = len(older_bytes)
        place = np.full(n + 1, -1)  # position of a trace's row among the requests
        place[kept] = n_older + np.arange(len(kept))
        blocks = np.where(is_malloc[kept] | (block[kept] < 0), -1, place[block[kept]])
        requests = cls(
            kind=np.concatenate([np.full(n_older, RequestKind.MALLOC, np.uint8), kind[kept]]),
            size_bytes=np.concatenate([older_bytes, np.where(has_size[kept], trace.size_bytes[kept], 0)]),
            stream=np.concatenate([older_streams, trace.stream[kept]]).astype(np.int32),
            block=np.concatenate([np.full(n_older, -1), blocks]),
            source=np.concatenate([np.full(n_older, -1), kept]),
            rules=AllocatorRules.of_trace(trace),
        )
        return requests._with_frees(older_frees) if older_frees else requests

    def _with_frees(self, frees: dict[int, int]) -> Requests:
        """Return the requests with the frees of older blocks, {row of the trace: request}, put in their places."""
        rows = sorted(frees)
        places = np.searchsorted(self.source, rows, side="left")
        order = np.searchsorted(places, np.arange(len(self)), side="right")  # rows by which each old row moves down
        moved = np.where(self.block >= 0, self.block + order[np.maximum(self.block, 0)], -1)
        blocks = [frees[row] + int(order[frees[row]]) for row in rows]
        return replace(
            self,
            kind=np.insert(self.kind, places, RequestKind.FREE),
            size_bytes=np.insert(self.size_bytes, places, 0),
            stream=np.insert(self.stream, places, [self.stream[frees[row]] for row in rows]),
            block=np.insert(moved, places, blocks),
            source=np.insert(self.source, places, rows),
        )


def _empty_cache_rows(trace: Trace) -> npt.NDArray[np.bool_]:
    action = trace.action
    marked: npt.NDArray[np.bool_] = action == Action.EMPTY_CACHE
    if trace.header.get("marks_empty_cache"):
        return marked
    released = np.isin(action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    following = np.append(action[1:], Action.SNAPSHOT)
    ends = released & ~np.append(released[1:], False)
    made_room = np.isin(following, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM))
    return np.asarray(marked | (ends & ~made_room))


def _older_blocks(trace: Trace) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], dict[int, int]]:
    """Return bytes and stream of the blocks older than the first row, and {row that frees one: its place}."""
    found: dict[int, tuple[int, int, int]] = {}  # address -> bytes, stream, row that frees it
    frees = np.flatnonzero((trace.action == Action.FREE_COMPLETED) & (trace.block < 0))
    for row in frees.tolist():
        address = int(trace.address[row])
        if address not in found:
            found[address] = (int(trace.size_bytes[row]), int(trace.stream[row]), row)
    if trace.segments is not None and trace.blocks is not None and len(trace.segments.address):
        ends = set(trace.address[trace.live_at(len(trace) - 1)].tolist()) if len(trace) else set()
        for segment, address, _, requested_bytes, state in trace.blocks.rows():
            if state != BlockState.INACTIVE and address not in ends and address not in found:
                found[address] = (requested_bytes, int(trace.segments.stream[segment]), -1)
    order = sorted(found)
    return (
        np.array([found[address][0] for address in order], np.int64),
        np.array([found[address][1] for address in order], np.int32),
        {found[address][2]: place for place, address in enumerate(order) if found[address][2] >= 0},
    )
