"""Driver of PyTorch's own caching allocator with bare requests, as a reference for the simulator.

A request is a tuple with sizes in bytes; the caller chooses the numbers of blocks, streams, and pools (stream 0 is the
default one):

    ("malloc", block, bytes, stream)   ("free", block)          ("record", block, stream)
    ("empty",)                         ("begin", pool)          ("end", pool)              ("release", pool)

A failed malloc leaves no block; later requests that name it are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from vramcast.hardware.device import Device
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.nullgpu.child.main import Program
from vramcast.tracer.nullgpu.client import NullGpuTracer

Request: TypeAlias = tuple[Any, ...]

# Compared fields of torch.cuda.memory_stats().
_LEVELS = (
    *("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes"),
    *("allocation", "segment", "inactive_split"),
)
_KEYS = (
    *(f"{name}.all.{when}" for name in _LEVELS for when in ("current", "peak")),
    *("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"),
)


@dataclass(frozen=True, slots=True)
class RawResult:
    """Result of one sequence.

    Attributes:
        addresses: Address of each malloc in order, None if it failed.
        messages: torch's message for each failed malloc.
        statistics: Result of `torch.cuda.memory_stats()`.
        segments: Result of `torch.cuda.memory_snapshot()`: (address, bytes, is_large, ((block bytes, state), ...)).
        events: The allocator's history: (action, address, bytes).
        seconds: Time of the requests, driven from Python.
    """

    addresses: list[int | None]
    messages: list[str]
    statistics: dict[str, int]
    segments: list[tuple[int, int, bool, tuple[tuple[int, str], ...]]]
    events: list[tuple[str, int, int]]
    seconds: float


def play(
    sequences: Sequence[Sequence[Request]],
    card: Device,
    alloc_conf: str = "",
    *,
    limited: bool = True,
    tracer: NullGpuTracer | None = None,
) -> list[RawResult]:
    """Play sequences of requests in one allocator in one process of the null GPU; return the result of each.

    Args:
        sequences: Sequences; each starts with an empty allocator and fresh statistics.
        card: Card with its own size.
        alloc_conf: The allocator's settings.
        limited: True if the card ends at its size.
        tracer: Tracer whose worker plays them; default: the shared one.
    """
    here = (str(Path(__file__).parents[2]),)
    program = Program(__name__, (alloc_conf, sequences), card, limited=limited, search_path=here)
    results: list[RawResult] = (tracer or NullGpuTracer.shared()).run(program)
    return results


def run_job(argument: tuple[str, Sequence[Sequence[Request]]]) -> list[RawResult]:
    """Play all sequences in this process, in which the null GPU is loaded and configured; called by the worker."""
    import torch

    alloc_conf, sequences = argument
    if alloc_conf:
        torch_api.set_allocator_settings(alloc_conf)
    streams: dict[int, Any] = {0: torch.cuda.default_stream()}
    results = []
    for sequence in sequences:
        results.append(_play(sequence, streams))
        torch.cuda.empty_cache()
    return results


def _play(sequence: Sequence[Request], streams: dict[int, Any]) -> RawResult:
    import time

    import torch

    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
    torch_api.record_memory_history(context=None, max_entries=1_000_000)  # arbitrary: above any sequence
    live: dict[int, Any] = {}
    pools: dict[int, Any] = {}
    users: dict[int, int] = {}
    addresses: list[int | None] = []
    messages: list[str] = []

    def stream_of(number: int) -> Any:
        if number not in streams:
            make: Any = torch.cuda.Stream
            streams[number] = make()
        return streams[number]

    started = time.perf_counter()
    for kind, *operands in sequence:
        if kind == "malloc":
            block, size_bytes, stream = operands
            try:
                with torch.cuda.stream(stream_of(stream)):
                    live[block] = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
                addresses.append(live[block].data_ptr())
            except torch.OutOfMemoryError as error:
                addresses.append(None)
                messages.append(str(error))
        elif kind == "free":
            live.pop(operands[0], None)
        elif kind == "record":
            if operands[0] in live:
                live[operands[0]].record_stream(stream_of(operands[1]))
        elif kind == "empty":
            torch.cuda.empty_cache()
        elif kind == "begin":
            pool = pools.setdefault(operands[0], torch.cuda.graph_pool_handle())
            torch_api.begin_pool(0, pool)
            users[operands[0]] = users.get(operands[0], 0) + 1
        elif kind == "end":
            torch_api.end_pool(0, pools[operands[0]])
        elif kind == "release":
            torch_api.release_pool(0, pools[operands[0]])
            users[operands[0]] -= 1
            if not users[operands[0]]:
                del pools[operands[0]]
    seconds = time.perf_counter() - started
    snapshot = torch_api.memory_snapshot()
    statistics = torch.cuda.memory_stats()
    torch_api.record_memory_history(enabled=None)
    live.clear()
    for number, pool in pools.items():
        for _ in range(users[number]):
            torch_api.release_pool(0, pool)
    return RawResult(
        addresses,
        messages,
        {key: statistics.get(key, 0) for key in _KEYS},
        [
            (
                segment["address"],
                segment["total_size"],
                segment["segment_type"] == "large",
                tuple((block["size"], block["state"]) for block in segment["blocks"]),
            )
            for segment in snapshot["segments"]
        ],
        [
            (entry["action"], entry.get("addr", entry.get("device_free", 0)), entry["size"])
            for entry in snapshot["device_traces"][0]
            if entry["action"] != "snapshot"
        ],
        seconds,
    )
