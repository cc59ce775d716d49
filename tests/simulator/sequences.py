"""Random request sequences, decoded from bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.rules import MIB, N_INTERVALS
from vramcast.simulator.settings import NO_LIMIT, Settings

Request = tuple[Any, ...]

# Sizes at and around the allocator's own thresholds, and others between them.
_SIZES = (
    *(1, 511, 512, 513, 1024, 2**18, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 5 * MIB, 9 * MIB, 10 * MIB - 1),
    *(10 * MIB, 10 * MIB + 1, 19 * MIB, 19 * MIB - 512, 20 * MIB, 20 * MIB + 1, 33 * MIB, 64 * MIB, 100 * MIB, 190 * MIB),
)


def decode(data: bytes, *, n_streams: int, pools: bool) -> list[Request]:
    """Return the sequence that `data` encodes: three bytes per request, in the form for the allocator driver."""
    sequence: list[Request] = []
    live: list[int] = []
    open_pool: int | None = None
    users: dict[int, int] = {}
    for at in range(0, len(data) - 2, 3):
        what, first, second = data[at : at + 3]
        stream = first % n_streams
        if what < 115 or not live:
            if what % 2:
                size_bytes = _SIZES[second % len(_SIZES)]
            else:
                size_bytes = max(int(2 ** (8 + 20 * (first * 256 + second) / 65536)), 1)
            sequence.append(("malloc", at, size_bytes, stream))
            live.append(at)
        elif what < 225:
            sequence.append(("free", live.pop((first * 256 + second) % len(live))))
        elif what < 235:
            sequence.append(("record", live[second % len(live)], stream))
        elif what < 243:
            if open_pool is None:
                sequence.append(("empty",))
        elif pools and open_pool is not None:
            sequence.append(("end", open_pool))
            open_pool = None
        elif pools and what < 251:
            open_pool = 1 + second % 2
            users[open_pool] = users.get(open_pool, 0) + 1
            sequence.append(("begin", open_pool))
        elif pools and users.get(1 + second % 2):
            users[1 + second % 2] -= 1
            sequence.append(("release", 1 + second % 2))
    if open_pool is not None:
        sequence.append(("end", open_pool))
    return sequence


def requests_of(sequences: list[list[Request]]) -> tuple[Requests, list[range]]:
    """Return the sequences as one list of requests, each followed by the cleanup of raw.run, and the rows of each."""
    rows: list[tuple[int, int, int, int]] = []  # kind, bytes, stream, block
    spans = []
    pools: dict[int, int] = {}  # number in a sequence -> number in the list; numbers are never reused
    n_pools = 0
    for sequence in sequences:
        start = len(rows)
        live: dict[int, int] = {}
        users: dict[int, int] = {}
        for what, *operands in sequence:
            if what == "malloc":
                live[operands[0]] = len(rows)
                rows.append((RequestKind.MALLOC, operands[1], operands[2], -1))
            elif what == "free":
                rows.append((RequestKind.FREE, 0, 0, live.pop(operands[0])))
            elif what == "record":
                rows.append((RequestKind.RECORD, 0, operands[1], live[operands[0]]))
            elif what == "empty":
                rows.append((RequestKind.EMPTY, 0, 0, -1))
            elif what == "begin":
                if operands[0] not in pools:
                    n_pools += 1
                    pools[operands[0]] = n_pools
                number = pools[operands[0]]
                users[number] = users.get(number, 0) + 1
                rows.append((RequestKind.BEGIN_POOL, number, 0, -1))
            elif what == "end":
                rows.append((RequestKind.END_POOL, pools[operands[0]], 0, -1))
            else:
                number = pools[operands[0]]
                rows.append((RequestKind.RELEASE_POOL, number, 0, -1))
                users[number] -= 1
                if not users[number]:
                    del pools[operands[0]]
        spans.append(range(start, len(rows)))
        rows += [(RequestKind.FREE, 0, 0, block) for block in live.values()]
        rows += [(RequestKind.RELEASE_POOL, number, 0, -1) for number, n in users.items() for _ in range(n)]
        rows.append((RequestKind.EMPTY, 0, 0, -1))
        pools = {}
    kind, size_bytes, stream, block = (np.array(column) for column in zip(*rows, strict=True))
    source = np.arange(len(rows))
    requests = Requests(
        kind.astype(np.uint8), size_bytes.astype(np.int64), stream.astype(np.int32), block.astype(np.int64), source, waits=False
    )
    return requests, spans


@st.composite
def settings(draw: st.DrawFn) -> Settings:
    """Draw settings of all kinds; many of the drawn values are torch's defaults."""
    expandable = draw(st.booleans())
    large = draw(st.sampled_from([20, 20, 20, 12, 34, 40]))
    split = st.one_of(st.just(NO_LIMIT), st.integers(large, 200).map(lambda mib: mib * MIB))
    # torch 2.11 stops with an internal error when expandable segments meet max_split_size and a full card.
    max_split = NO_LIMIT if expandable else draw(split)
    divisions = st.sampled_from([0, 1, 2, 4, 8, 16])
    roundup = st.one_of(
        st.just((0,) * N_INTERVALS),
        divisions.map(lambda n: (n,) * N_INTERVALS),
        st.lists(divisions, min_size=N_INTERVALS, max_size=N_INTERVALS).map(tuple),
    )
    return Settings(
        max_split_bytes=max_split,
        max_non_split_rounding_bytes=draw(st.one_of(st.none(), st.integers(large, 100).map(lambda mib: mib * MIB))),
        roundup_divisions=draw(roundup),
        garbage_collection_threshold=draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 0.8, 0.99])),
        expandable_segments=expandable,
        large_segment_bytes=large * MIB,
        memory_fraction=draw(st.sampled_from([1.0, 1.0, 0.95, 0.7, 0.3])),
    )
