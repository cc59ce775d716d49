"""The requests in a trace, without the allocator's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from vramcast.core.errors import UsageError
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.tracer.format.trace import Action, BlockState, Category, Trace

MARKED = {"marks_empty_cache": True}


def trace_of(*rows: tuple[Any, ...], header: dict[str, Any] | None = None, **others: Any) -> Trace:
    """Return a trace of (action, bytes, block[, stream[, address]])."""
    padded = [(*row, *(0, 0)[len(row) - 3 :]) for row in rows]
    names = ("action", "size_bytes", "block", "stream", "address")
    columns = {name: [row[i] for row in padded] for i, name in enumerate(names)}
    return Trace.build(columns, header=MARKED if header is None else header, stream_ids=(0, 7), **others)


def asked(trace: Trace) -> list[tuple[RequestKind, int, int, int, int]]:
    """Return the requests of `trace`: kind, bytes, stream, block, source."""
    r = Requests.of(trace)
    columns = (r.kind.tolist(), r.size_bytes.tolist(), r.stream.tolist(), r.block.tolist(), r.source.tolist())
    assert r.waits
    return [(RequestKind(kind), *rest) for kind, *rest in zip(*columns, strict=True)]


def layout(blocks: Sequence[tuple[int, int, int, BlockState]]) -> dict[str, Any]:
    """Return a final layout of (segment, address, requested bytes, state) in two segments, the second of stream 1."""
    segment, address, requested_bytes, state = (list(column) for column in zip(*blocks, strict=True))
    size_bytes = [-(-size // 512) * 512 for size in requested_bytes]
    return {
        "segments": {
            "address": [0x1000, 0x9000],
            "total_size": [0x2000, 0x2000],
            "stream": [0, 1],
            "is_large": [False, False],
            "is_expandable": [False, False],
        },
        "blocks": {
            "segment": segment,
            "address": address,
            "size_bytes": size_bytes,
            "requested_bytes": requested_bytes,
            "state": state,
        },
    }


def test_immediate_free_is_one_request() -> None:
    trace = trace_of(
        (Action.ALLOC, 4000, 0),
        (Action.ALLOC, 50, 1, 1),
        (Action.FREE_REQUESTED, 4000, 0),
        (Action.FREE_REQUESTED, 50, 1, 1),
        (Action.FREE_COMPLETED, 50, 1, 1),
        (Action.FREE_COMPLETED, 4000, 0),
    )
    assert asked(trace) == [
        (RequestKind.MALLOC, 4000, 0, -1, 0),
        (RequestKind.MALLOC, 50, 1, -1, 1),
        (RequestKind.FREE, 0, 0, 0, 2),
        (RequestKind.FREE, 0, 1, 1, 3),
    ]


def test_late_free_is_two_requests() -> None:
    trace = trace_of(
        (Action.SEGMENT_ALLOC, 2 << 20, -1),
        (Action.ALLOC, 4000, 1),
        (Action.FREE_REQUESTED, 4000, 1),
        (Action.ALLOC, 50, 3),
        (Action.FREE_COMPLETED, 4000, 1),
        (Action.FREE_REQUESTED, 50, 3),
    )
    assert asked(trace) == [
        (RequestKind.MALLOC, 4000, 0, -1, 1),
        (RequestKind.RETIRE, 0, 0, 0, 2),
        (RequestKind.MALLOC, 50, 0, -1, 3),
        (RequestKind.COMPLETE, 0, 0, 0, 4),
        (RequestKind.RETIRE, 0, 0, 2, 5),  # never completed
    ]


def test_completion_without_request_is_free() -> None:
    assert asked(trace_of((Action.ALLOC, 1, 0), (Action.FREE_COMPLETED, 1, 0)))[1] == (RequestKind.FREE, 0, 0, 0, 1)


def test_emptied_cache_separates_free_from_completion() -> None:
    trace = trace_of(
        (Action.ALLOC, 1, 0),
        (Action.FREE_REQUESTED, 1, 0),
        (Action.EMPTY_CACHE, 0, -1),
        (Action.SEGMENT_FREE, 2 << 20, -1),
        (Action.FREE_COMPLETED, 1, 0),
    )
    assert [kind for kind, *_ in asked(trace)] == [
        RequestKind.MALLOC,
        RequestKind.RETIRE,
        RequestKind.EMPTY,
        RequestKind.COMPLETE,
    ]


def test_leaves_out_answers_and_snapshots() -> None:
    trace = trace_of((Action.SEGMENT_MAP, 1, -1), (Action.OOM, 1, -1), (Action.SNAPSHOT, 0, -1), (Action.SEGMENT_UNMAP, 1, -1))
    assert asked(trace) == []


def test_infers_emptied_cache_from_released_segments() -> None:
    rows = [
        (Action.ALLOC, 1, 0),
        (Action.SEGMENT_FREE, 1, -1),
        (Action.SEGMENT_FREE, 1, -1),
        (Action.ALLOC, 1, 3),
        (Action.SEGMENT_FREE, 1, -1),  # made room
        (Action.SEGMENT_ALLOC, 1, -1),
        (Action.ALLOC, 1, 6),
        (Action.SEGMENT_UNMAP, 1, -1),  # made room, but not enough
        (Action.OOM, 1, -1),
        (Action.SEGMENT_UNMAP, 1, -1),
    ]
    kinds = [(kind, source) for kind, _, _, _, source in asked(trace_of(*rows, header={}))]
    assert kinds == [
        (RequestKind.MALLOC, 0),
        (RequestKind.EMPTY, 2),
        (RequestKind.MALLOC, 3),
        (RequestKind.MALLOC, 6),
        (RequestKind.EMPTY, 9),
    ]
    assert [kind for kind, *_ in asked(trace_of(*rows))] == [RequestKind.MALLOC] * 3


@pytest.mark.parametrize("name", ["aten::cudnn_convolution", "aten::convolution_backward", "ConvolutionBackward0"])
def test_convolution_workspace_is_try(name: str) -> None:
    columns = {
        "action": [Action.ALLOC] * 4,
        "size_bytes": [1, 2, 3, 4],
        "block": [0, 1, 2, 3],
        "op": [0, 1, 0, -1],
        "category": [Category.WORKSPACE, Category.WORKSPACE, Category.ACTIVATION, Category.WORKSPACE],
    }
    trace = Trace.build(columns, ops=[name, "aten::mm"], header=MARKED)
    assert [kind for kind, *_ in asked(trace)] == [RequestKind.TRY, RequestKind.MALLOC, RequestKind.MALLOC, RequestKind.MALLOC]


def test_outside_memory_is_taken() -> None:
    trace = trace_of((Action.ALLOC, 1, 0), (Action.CONTEXT, 300, -1))
    assert asked(trace)[1] == (RequestKind.TAKE, 300, 0, -1, 1)
    assert Requests.of(trace).n_pools == 1


def test_older_blocks_are_requested_first() -> None:
    trace = trace_of(
        (Action.ALLOC, 100, 0, 0, 0x2000),
        (Action.FREE_COMPLETED, 700, -1, 1, 0x9200),
        (Action.FREE_REQUESTED, 100, 0, 0, 0x2000),
        (Action.FREE_COMPLETED, 100, 0, 0, 0x2000),
        (Action.FREE_COMPLETED, 600, -1, 0, 0x1200),
        (Action.ALLOC, 900, 5, 0, 0x1400),
        **layout(
            [
                (0, 0x1000, 512, BlockState.ACTIVE_ALLOCATED),  # older, lives on
                (0, 0x1200, 0, BlockState.INACTIVE),
                (0, 0x1400, 900, BlockState.ACTIVE_ALLOCATED),  # a block of the trace
                (1, 0x9000, 300, BlockState.ACTIVE_PENDING_FREE),  # older
            ]
        ),
    )
    assert asked(trace) == [
        (RequestKind.MALLOC, 512, 0, -1, -1),
        (RequestKind.MALLOC, 600, 0, -1, -1),
        (RequestKind.MALLOC, 300, 1, -1, -1),
        (RequestKind.MALLOC, 700, 1, -1, -1),
        (RequestKind.MALLOC, 100, 0, -1, 0),
        (RequestKind.FREE, 0, 1, 3, 1),
        (RequestKind.FREE, 0, 0, 4, 2),
        (RequestKind.FREE, 0, 0, 1, 4),
        (RequestKind.MALLOC, 900, 0, -1, 5),
    ]


def test_reused_address_is_one_older_block() -> None:
    trace = trace_of(
        (Action.FREE_COMPLETED, 600, -1, 0, 0x1000),
        (Action.ALLOC, 500, 1, 0, 0x1000),
        (Action.FREE_REQUESTED, 500, 1, 0, 0x1000),
        (Action.FREE_COMPLETED, 500, 1, 0, 0x1000),
    )
    assert [kind for kind, *_ in asked(trace)] == [RequestKind.MALLOC, RequestKind.FREE, RequestKind.MALLOC, RequestKind.FREE]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((99, 0, 0, -1), "has an unknown kind"),
        ((RequestKind.MALLOC, -1, 0, -1), "has a negative size"),
        ((RequestKind.MALLOC, 1, -1, -1), "has a stream outside"),
        ((RequestKind.MALLOC, 1, 1 << 20, -1), "has a stream outside"),
        ((RequestKind.MALLOC, 1, 0, 0), "names a block"),
        ((RequestKind.FREE, 0, 0, -1), "refers to no earlier request"),
        ((RequestKind.FREE, 0, 0, 2), "refers to no earlier request"),
        ((RequestKind.COMPLETE, 0, 0, 1), "allocates no memory"),
        ((RequestKind.RELEASE_POOL, 1, 0, -1), "out of turn"),
        ((RequestKind.END_POOL, 1, 0, -1), "out of turn"),
        ((RequestKind.BEGIN_POOL, 0, 0, -1), "out of turn"),
        ((RequestKind.BEGIN_POOL, 1 << 40, 0, -1), "out of turn"),
    ],
)
def test_rejects_contradictory_requests(row: tuple[int, ...], words: str) -> None:
    rows = [(RequestKind.MALLOC, 5, 0, -1), (RequestKind.EMPTY, 0, 0, -1), row]
    columns = [np.array(column, dtype) for column, dtype in zip(zip(*rows, strict=True), ("u1", "i8", "i4", "i8"), strict=True)]
    with pytest.raises(UsageError, match=f"Request 2 .*{words}"):
        Requests(*columns, source=np.full(3, -1))


@pytest.mark.parametrize("grown", [Action.SEGMENT_ALLOC, Action.SEGMENT_MAP])
def test_pages_released_before_growth_made_room(grown: Action) -> None:
    # An allocator that finds the card full releases unused memory and retries; the job did not empty its cache.
    rows = [(Action.ALLOC, 1, 0), (Action.SEGMENT_UNMAP, 1, -1), (grown, 1, -1), (Action.ALLOC, 1, 3)]
    assert [kind for kind, *_ in asked(trace_of(*rows, header={}))] == [RequestKind.MALLOC, RequestKind.MALLOC]


@pytest.mark.parametrize(
    ("header", "oldest_first"),
    [
        ({"torch": "2.13.0"}, False),
        ({"torch": "2.14.1+cu130"}, True),
        ({}, False),
        ({"allocator_settings": {"max_split_size": -1}}, False),
        ({"allocator_settings": {"max_split_size": -1, "max_cached_size": -1}}, True),
    ],
)
def test_names_rules_of_traces_torch(header: dict[str, Any], oldest_first: bool) -> None:
    trace = trace_of((Action.ALLOC, 512, 0), header=header)
    assert Requests.of(trace).rules.oldest_first is oldest_first
