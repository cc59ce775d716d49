"""Differences between the installed torch and the releases that vramcast knows. See docs/new-torch.md.

    python -m benchmarks.new_torch [--sequences N]          with another torch: build/versions/VERSION/bin/python -m ...

Five checks: private names (tracer/hooks/torch_api.py); NVIDIA's entry points (csrc/entry_points.txt); the allocator's constants
and settings (simulator/rules.py), read from torch's headers and tried on the null GPU; random requests with torch's own
allocator and with the simulator; a small job with each tracer. The last line is for tracer/nullgpu/known_good.json.
The exit code is 1 for any difference.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.simulator import allocator_driver
from benchmarks.simulator.allocator_driver import RawResult, Request
from vramcast.cli.verbs.doctor import failure_of
from vramcast.core.errors import SimulatedOutOfMemory, UsageError, VramcastError
from vramcast.hardware.cards import device
from vramcast.simulator import rules as numbers
from vramcast.simulator.blocks import Block
from vramcast.simulator.caching import CachingAllocator
from vramcast.simulator.card import Card
from vramcast.simulator.rules import MIB, AllocatorRules
from vramcast.simulator.settings import Settings
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.nullgpu.library.build import KnownBuild, entry_points_digest, find_torch
from vramcast.tracer.nullgpu.library.entry_points import needed_symbols, read_list

# Fields and methods of PyTorch's objects by class, used as `thing._field`. They are looked up on an object of each kind,
# because some exist only after `__init__`.
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "torch:ops.aten.add.Tensor": ("_schema", "_op_dk", "_overloadpacket"),
    "torch:Tensor": ("_make_subclass", "_is_view", "_use_count", "_indices", "_nnz"),
    "torch:UntypedStorage": ("_cdata",),
    "torch._C:_FunctionBase": ("_sequence_nr",),
    "torch.nn:LSTM": ("_flat_weights",),
    "torch.nn:Module": ("_buffers", "_compiled_call_impl"),
    "torch._C:_profiler._ProfilerEvent": ("tag", "name", "children", "extra_fields", "start_time_ns", "end_time_ns"),
    "torch._C:_profiler._ExtraFields_Allocation": ("alloc_size", "ptr", "device"),
    "torch._C:_profiler._ExtraFields_TorchOp": ("sequence_number", "inputs"),
    "torch._C:_profiler._TensorMetadata": ("storage_data_ptr", "sizes", "dtype", "device"),
}
# For these, an object is inspected instead of the class; the values are its arguments.
_MADE: Final[dict[str, tuple[int, ...]]] = {"torch.nn:LSTM": (1, 1), "torch.nn:Module": ()}
_CONSTANTS = {
    "kMinBlockSize": numbers.MIN_BLOCK_BYTES,
    "kSmallSize": numbers.SMALL_BYTES,
    "kSmallBuffer": numbers.SMALL_SEGMENT_BYTES,
    "kMinLargeAlloc": numbers.MIN_LARGE_BYTES,
    "kLargeBuffer": numbers.LARGE_SEGMENT_BYTES,
    "kRoundLarge": numbers.ROUND_LARGE_BYTES,
    "large_segment_size_": numbers.LARGE_SEGMENT_BYTES,
}
# Texts of settings that some release rejects; every release must do the same as `Settings.parse` under its rules.
_TEXTS = (
    "", "max_split_size_mb:20", "max_split_size_mb:21", "max_non_split_rounding_mb:20", "large_segment_size_mb:40",
    "per_process_memory_fraction:0.5", "garbage_collection_threshold:1.0", "garbage_collection_threshold:0.5",
    "graph_capture_record_stream_reuse:True", "pinned_reserve_segment_size_mb:4", "pinned_free_catch_all:True",
    "pinned_max_cached_size_mb:4", "pinned_max_round_threshold_mb:4", "roundup_power2_divisions:3", "expandable_segments:true",
    "nonsense:1",
)  # fmt: skip
_CONFS = ("", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4")
_KEY = re.compile(
    rb"\0((?:max_(?:non_)?split|pinned|roundup|expandable|large|per_process|graph_capture|garbage|throw_on|release_lock)"
    rb"_[a-z0-9_]*[a-z0-9])(?=\0)"
)
_SHOWN = 3  # arbitrary: number of names of each kind in known_good.json
_NOT_SIMULATED = {"expandable_segments_reserve", "expandable_segments_reserve_by_class", "throw_on_cudamalloc_oom"}


def main() -> int:
    """Print the report; return 1 for a difference."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sequences", type=int, default=200, help="number of random sequences per setting (200)")
    n_sequences = options.parse_args().sequences
    torch = find_torch()
    print(f"torch {torch.version}, CUDA {torch.cuda}")
    deviations = (
        *_said("private names that it lacks", missing()),
        *_said("entry points that the list lacks", _unlisted(torch.lib)),
        *_said("allocator constants and settings that differ", [*_constants(torch.lib), *_unknown_keys(torch.lib)]),
        *_said("texts of settings that it reads differently", list(_texts(torch.version))),
        *_said("random requests that it serves differently", list(_sequences(n_sequences, AllocatorRules.of(torch.version)))),
        *_said("tracers that do not answer", list(_tracers())),
    )
    today = datetime.date.today().isoformat()
    release = torch.version.partition("+")[0]
    print(json.dumps(asdict(KnownBuild(release, torch.cuda or "", entry_points_digest(torch), today, deviations))))
    return 1 if deviations else 0


def missing() -> list[str]:
    """Return the members of `NAMES` and `FIELDS` that the installed torch lacks, one per line; `REPLACED` may be absent."""
    import torch

    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    lines = [
        f"{' or '.join(entry.paths)}: needed for {entry.needed_by}"
        for entry in torch_api.NAMES.values()
        if release >= entry.since
        and (torch.version.cuda is not None or not entry.cuda)
        and all(torch_api.find(path) is torch_api.ABSENT for path in entry.paths)
    ]
    for path, fields in FIELDS.items():
        owner = torch_api.find(path)
        made = owner if owner is torch_api.ABSENT or path not in _MADE else owner(*_MADE[path])
        lines += [f"{path}.{field}" for field in fields if not hasattr(made, field)]
    return lines


def _said(title: str, found: list[str]) -> Iterator[str]:
    """Print the findings, and yield them as one line, if any."""
    print(f"{title}: {len(found) or 'none'}", *(f"    {line}" for line in found), sep="\n", flush=True)
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        yield f"{title}: {', '.join(found[:_SHOWN])}{more}"


def _unlisted(lib: Path) -> list[str]:
    needed = {symbol.name for symbols in needed_symbols(lib).values() for symbol in symbols}
    # Triton compiles this file on first use, and links it with the driver. cuda.h renames some calls: cuMemAlloc_v2.
    called = lib.parents[1] / "triton" / "backends" / "nvidia" / "driver.c"
    names = re.findall(r"\b(cu[A-Z]\w+)(?<!Handle)\(", called.read_text()) if called.exists() else []
    listed = set(read_list())
    return sorted((needed - listed) | (set(names) - {re.sub(r"_v\d+$", "", name) for name in listed} - listed))


def _constants(lib: Path) -> Iterator[str]:
    """Yield constants whose values in torch's headers differ from ours; a header without any of them is older than 2.10."""
    header = lib.parent / "include" / "c10" / "core" / "AllocatorConfig.h"
    text = header.read_text() if header.exists() else ""
    for name, ours in _CONSTANTS.items():
        found = re.search(rf"\b{name}\s*(?:=|\{{)\s*(\d+)", text)
        if found and int(found[1]) != ours:
            yield f"{name} is {found[1]}, here {ours}"


def _unknown_keys(lib: Path) -> Iterator[str]:
    """Yield settings in torch's libraries that vramcast does not know."""
    data = b"".join((lib / name).read_bytes() for name in ("libc10.so", "libc10_cuda.so"))
    for key in sorted({match.decode() for match in _KEY.findall(data)} - _NOT_SIMULATED):
        try:
            Settings.parse(f"{key}:0", AllocatorRules((99, 0)))
        except UsageError as error:
            if "is unknown" in str(error):
                yield f"setting {key}"


def _played(conf: str, sequences: list[list[Request]], total_bytes: int = 40 << 30) -> list[RawResult]:
    return allocator_driver.play(sequences, device("a100-40gb").with_memory(total_bytes), conf)


def _texts(version: str) -> Iterator[str]:
    rules = AllocatorRules.of(version)
    for text in _TEXTS:
        said = []
        for read in (lambda: Settings.parse(text, rules), lambda: _played(text, [[("malloc", 0, 5 * MIB, 0)]])):  # noqa: B023
            try:
                read()
                said.append("accepted")
            except VramcastError:
                said.append("refused")
        if said[0] != said[1]:
            yield f"'{text}' is {said[1]}, here {said[0]}"


def _sequences(n: int, rules: AllocatorRules) -> Iterator[str]:
    draw = random.Random(1)
    for conf in _CONFS:
        total_bytes = 500 * MIB + 12345  # arbitrary: some sequences run out of memory
        sequences = [_sequence(draw) for _ in range(n)]
        allocator = CachingAllocator(Settings.parse(conf, rules), Card(total_bytes), rules=rules)
        ours = [_addresses(allocator, sequence) for sequence in sequences]
        try:
            theirs = [result.addresses for result in _played(conf, sequences, total_bytes)]
        except VramcastError as error:
            yield f"{conf or 'default'}: {str(error).splitlines()[0]}"
            continue
        bases = [next(address for row in rows for address in row if address is not None) for rows in (ours, theirs)]
        moved = [
            [[None if address is None else address - base for address in row] for row in rows]
            for rows, base in zip((ours, theirs), bases, strict=True)
        ]
        differ = sum(a != b for a, b in zip(*moved, strict=True))
        if differ:
            yield f"{conf or 'default'}: {differ} of {n} sequences"


def _sequence(draw: random.Random) -> list[Request]:
    """Return mallocs and frees of all sizes, on one stream."""
    requests: list[Request] = []
    live: list[int] = []
    for number in range(draw.randint(1, 100)):
        if live and draw.random() < 0.45:
            requests.append(("free", live.pop(draw.randrange(len(live)))))
        else:
            requests.append(("malloc", number, int(2 ** draw.uniform(0, 27)), 0))
            live.append(number)
    return requests


def _addresses(allocator: CachingAllocator, sequence: list[Request]) -> list[int | None]:
    live: dict[int, Block] = {}
    addresses: list[int | None] = []
    for kind, block, *rest in sequence:
        if kind == "free":
            if block in live:
                allocator.free(live.pop(block))
            continue
        try:
            live[block] = allocator.malloc(rest[0])
            addresses.append(live[block].address)
        except SimulatedOutOfMemory:
            addresses.append(None)
    for left in live.values():
        allocator.free(left)
    allocator.empty_cache()
    return addresses


def _tracers() -> Iterator[str]:
    """Yield the tracers that fail on one layer: the portable ones name operators that an older torch may lack."""
    for tracer in ("nullgpu", "fake", "cpu"):
        if failure := failure_of(tracer):
            yield f"{tracer}: {failure}"


if __name__ == "__main__":
    sys.exit(main())
