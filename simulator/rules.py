"""The caching allocator's constants, and the differences between releases of PyTorch.

    AllocatorRules.of("2.8.0+cu126")     the settings that the release accepts, and their bounds

Releases differ in the texts of PYTORCH_CUDA_ALLOC_CONF that they accept, and, since 2.14, in the free block that they choose
among equals: measured on the null GPU under 2.6.0, 2.9.1, 2.10.0, 2.11.0, 2.14.1 and 2.15.0 (`python -m
benchmarks.new_torch`); the simulator agrees with each. Others are treated like the measured release before them.

csrc/rules.h is generated from this file: `python -m benchmarks.simulator.allocator_header`; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vramcast.core.brief import brief
from vramcast.hardware.stack import release_of
from vramcast.tracer.format.trace import MIN_BLOCK_BYTES as MIN_BLOCK_BYTES  # every block is a multiple of this
from vramcast.tracer.format.trace import Trace

MIB: Final = 1 << 20
# spec: c10/core/AllocatorConfig.h, torch 2.10 to 2.15; all but the last
SMALL_BYTES: Final = MIB  # spec: kSmallSize, the largest request that the small pool serves
SMALL_SEGMENT_BYTES: Final = 2 * MIB  # spec: kSmallBuffer; segment, and page of expandable segments, of small pools
MIN_LARGE_BYTES: Final = 10 * MIB  # spec: kMinLargeAlloc, from here on a segment is as large as its first block
ROUND_LARGE_BYTES: Final = 2 * MIB  # spec: kRoundLarge
LARGE_SEGMENT_BYTES: Final = 20 * MIB  # spec: default of large_segment_size_; kLargeBuffer until 2.10
N_INTERVALS: Final = 16  # spec: roundup_power2_divisions, one for each power of two from 1 MiB to 64 GiB

_CURRENT: Final = (2, 11)  # for an unknown torch
# spec: the keys in c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h of 2.6.0, 2.9.1, 2.10.0, 2.11.0, 2.13.0
# and 2.15.0; measured: each accepted and rejected on the null GPU, except for 2.13. Every release accepts all other keys.
_SINCE: Final[dict[str, tuple[int, int]]] = {
    "graph_capture_record_stream_reuse": (2, 9),
    "per_process_memory_fraction": (2, 10),
    "pinned_reserve_segment_size_mb": (2, 10),
    "large_segment_size_mb": (2, 11),
    "pinned_free_catch_all": (2, 13),
    "pinned_max_cached_size_mb": (2, 13),
    "pinned_max_round_threshold_mb": (2, 13),
}  # throw_on_cudamalloc_oom (2.13) and expandable_segments_reserve (2.15) change allocations, and are not simulated
_OLDEST_FIRST: Final = (2, 14)  # measured: random requests on the null GPU under 2.11.0 and 2.14.1 (test_against_torch.py)
_SNAPSHOTS_SINCE_2_14: Final = "max_cached_size"  # measured: a setting in snapshots of 2.14.1 and 2.15.0, and not of 2.11.0
_ROUNDS_FRACTION: Final = (2, 14)  # measured: null GPU; 2.14.1 and 2.15.0 round the share of the card to the nearest byte
_LIMITED_BY_RANGE: Final = (2, 15)  # measured: likewise, under 2.15.0
_SPLIT_AT_LARGE: Final = (2, 10)  # measured: "must be > 20" under 2.6 and 2.9, 20 is accepted by 2.10 and later


@brief
@dataclass(frozen=True, slots=True)
class AllocatorRules:
    """The allocator settings that one release of PyTorch accepts.

    Attributes:
        release: Its first two numbers.
    """

    release: tuple[int, int] = _CURRENT

    @classmethod
    def of(cls, torch: str | None) -> AllocatorRules:
        """Return the rules of a release like `2.8.0+cu126`; for None, or another text, those of torch 2.11."""
        return cls(release_of(torch or "") or _CURRENT)

    @classmethod
    def of_trace(cls, trace: Trace) -> AllocatorRules:
        """Return the rules of the release that the trace names; for a snapshot, which names none, those of 2.14 or 2.11."""
        torch, settings = trace.header.get("torch"), trace.header.get("allocator_settings")
        if not torch and isinstance(settings, dict) and _SNAPSHOTS_SINCE_2_14 in settings:
            return cls(_OLDEST_FIRST)
        return cls.of(str(torch or ""))

    def knows(self, key: str) -> bool:
        """Return whether this release accepts a setting that some releases accept."""
        return self.release >= _SINCE.get(key, self.release)

    @property
    def splits_at_large_segments(self) -> bool:
        """Return whether max_split_size_mb and max_non_split_rounding_mb may equal a large segment; otherwise they must be
        larger.
        """
        return self.release >= _SPLIT_AT_LARGE

    @property
    def oldest_first(self) -> bool:
        """Return whether the oldest segment comes first among free blocks of equal size, and not the lowest address."""
        return self.release >= _OLDEST_FIRST

    @property
    def pools_capture(self) -> bool:
        """Return whether a private pool in use counts as a capture: blocks of other streams wait, and the cache is kept."""
        return self.release < _OLDEST_FIRST

    @property
    def refuses_beyond_range(self) -> bool:
        """Return whether a request larger than an expandable segment's addresses fails before these are reserved."""
        return self.release >= _LIMITED_BY_RANGE

    def allowed_bytes(self, fraction: float, total_bytes: int) -> int | None:
        """Return how many bytes all segments may take of a card, by the memory fraction; None: no limit but the card's own."""
        if fraction >= 1:
            return None
        return int(fraction * total_bytes + (0.5 if self.release >= _ROUNDS_FRACTION else 0))

    def serves_like(self, other: AllocatorRules) -> bool:
        """Return whether the allocators of both releases give the same requests the same places."""
        return all(getattr(self, name) == getattr(other, name) for name in SERVING)

    @property
    def large_segment_bytes(self) -> int:
        """Return the default of large_segment_size_mb."""
        return LARGE_SEGMENT_BYTES

    def __str__(self) -> str:
        """Return `torch 2.11`."""
        return "torch " + ".".join(map(str, self.release))


SERVING: Final = ("oldest_first", "pools_capture", "refuses_beyond_range")  # spec: the order in csrc/caching.c
RULES: Final = AllocatorRules()  # for an unknown torch
