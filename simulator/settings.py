"""The settings of PyTorch's caching allocator, parsed from PYTORCH_CUDA_ALLOC_CONF without torch.

    Settings.parse("expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:4]")

For the differences between releases see `rules.py`. Source: torch 2.11, c10/core/AllocatorConfig.h and
c10/cuda/CUDAAllocatorConfig.h;
https://docs.pytorch.org/docs/2.11/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Final

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.simulator.rules import (
    LARGE_SEGMENT_BYTES,
    MIB,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    N_INTERVALS,
    ROUND_LARGE_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorRules,
)  # fmt: skip

NO_LIMIT: Final = 1 << 62  # spec: max_split_size_ is SIZE_MAX by default; any size beyond all blocks will do

# torch accepts these; they have no effect on device memory.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
    }
)


class UnknownSetting(UsageError):
    """A key that the release of torch does not accept, or that is unknown here; a newer release may accept it."""


@brief
@dataclass(frozen=True, slots=True)
class Settings:
    """Allocator settings; the defaults are torch's.

    Attributes:
        max_split_bytes: Blocks of this size and above are never split.
        max_non_split_rounding_bytes: Most bytes by which such a block may exceed the request; None: the size of a large
            segment.
        roundup_divisions: Number of steps into which each power of two is divided when requests are rounded up; one number
            for each interval from 1 MiB to 64 GiB (smaller requests use the first), 0 or 1: multiples of 512 B.
        garbage_collection_threshold: Share of the allowed memory; if it is exceeded, unused segments are released
            before a new one is allocated; 0: never. Has an effect only if a memory fraction is set.
        expandable_segments: Whether each stream and pool has one growing segment, made of pages, instead of many segments.
        large_segment_bytes: Segment for requests between 1 and 10 MiB; with expandable segments, the page of large pools.
        memory_fraction: Largest share of the card for all segments together; 1: no limit except the card's own.

    Raises:
        UsageError: A value is out of its range.

    Example:
        >>> settings = vramcast.Settings.parse("expandable_segments:True,max_split_size_mb:128")
        >>> settings.max_split_bytes
        134217728
        >>> vramcast.Settings().round_bytes(1000)
        1024
    """

    max_split_bytes: int = NO_LIMIT
    max_non_split_rounding_bytes: int | None = None
    roundup_divisions: tuple[int, ...] = (0,) * N_INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    memory_fraction: float = 1.0

    def __post_init__(self) -> None:
        if self.large_segment_bytes <= MIN_LARGE_BYTES:
            raise UsageError(f"large_segment_size_mb is {self.large_segment_bytes // MIB}: it must be more than 10.")
        if not 0 <= self.garbage_collection_threshold < 1:
            raise UsageError(
                f"garbage_collection_threshold is {self.garbage_collection_threshold:g}: it must lie between 0 and 1."
            )
        if not 0 <= self.memory_fraction <= 1:
            raise UsageError(f"per_process_memory_fraction is {self.memory_fraction:g}: it must lie between 0 and 1.")
        if any(n and n & (n - 1) for n in self.roundup_divisions):
            raise UsageError("roundup_power2_divisions must be powers of two, or 0 for no rounding.")

    @classmethod
    def parse(cls, text: str, rules: AllocatorRules | None = None) -> Settings:
        """Return the settings that `text`, a value of PYTORCH_CUDA_ALLOC_CONF, sets.

        Args:
            text: Settings as `key:value,key:value`; empty: torch's defaults.
            rules: Rules of the release of torch that reads the text; default: torch 2.11.

        Returns:
            The settings.

        Raises:
            UsageError: torch would reject the text too, or it selects backend:cudaMallocAsync, which is a different allocator.
        """
        rules = rules or AllocatorRules()
        values: dict[str, object] = {}
        for key, value in _pairs(text):
            if key not in _KEYS or not rules.knows(key):
                known = ", ".join(sorted(filter(rules.knows, _KEYS)))
                raise UnknownSetting(f"Allocator setting '{key}' is unknown: {rules} knows {known}.")
            if key in _WITHOUT_EFFECT:
                continue
            if key == "backend":
                _check_backend(value)
                continue
            name, parse = _PARSERS[key]
            try:
                values[name] = parse(value)
            except UsageError:
                raise
            except ValueError:
                raise UsageError(f"Allocator setting {key}:{value} is not understood: see torch's notes on CUDA.") from None
        settings = replace(cls(large_segment_bytes=rules.large_segment_bytes), **values)  # type: ignore[arg-type]
        least_bytes = settings.large_segment_bytes
        for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
            value_bytes = values.get(_PARSERS[key][0], NO_LIMIT)
            assert isinstance(value_bytes, int)
            if value_bytes < least_bytes or (value_bytes == least_bytes and not rules.splits_at_large_segments):
                least = "at least" if rules.splits_at_large_segments else f"(for {rules}) more than"
                raise UsageError(
                    f"{key} is {value_bytes // MIB}: it must be {least} {least_bytes // MIB}, the size of a large segment."
                )
        return settings

    def __str__(self) -> str:
        """Return the shortest text that `parse` turns into these settings; "default" for none."""
        default = Settings()
        parts = []
        for key, (name, _) in _PARSERS.items():
            value = getattr(self, name)
            if value != getattr(default, name):
                parts.append(f"{key}:{_text(key, value)}")
        return ",".join(parts) or "default"

    @property
    def oversize_bytes(self) -> int:
        """Return the most bytes by which an unsplittable block may exceed the request."""
        given = self.max_non_split_rounding_bytes
        return self.large_segment_bytes if given is None else given

    def divisions(self, size_bytes: int) -> int:
        """Return the number of steps into which the power of two below `size_bytes` is divided.

        Args:
            size_bytes: Bytes of a request.

        Returns:
            The number of steps; 0 or 1: requests are rounded up to multiples of 512 B.
        """
        interval = size_bytes.bit_length() - 21  # 1 MiB is 2**20
        return self.roundup_divisions[min(max(interval, 0), N_INTERVALS - 1)]

    def round_bytes(self, size_bytes: int) -> int:
        """Return the size of the block for a request of `size_bytes`.

        Args:
            size_bytes: Bytes of the request.

        Returns:
            Bytes of the block, at least 512.
        """
        if size_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        divisions = self.divisions(size_bytes)
        if divisions > 1 and size_bytes > MIN_BLOCK_BYTES * divisions:
            power = 1 << (size_bytes.bit_length() - 1)
            step = power // divisions
            return -(-size_bytes // step) * step
        return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES

    def segment_bytes(self, block_bytes: int) -> int:
        """Return the size of the segment allocated for a block of `block_bytes`.

        Args:
            block_bytes: Bytes of the block, rounded.

        Returns:
            Bytes of the segment.
        """
        if block_bytes <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < MIN_LARGE_BYTES:
            return self.large_segment_bytes
        return -(-block_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield (key, value) of "key:value,key:[a:b,c:d]"; blanks have no meaning, as in torch."""
    rest = re.sub(r"\s+", "", text)
    while rest:
        match = re.match(r"([^:,\[\]]+):(\[[^\]]*\]|[^,\[\]]+)(?:,|$)", rest)
        if match is None:
            raise UsageError(f"Allocator settings '{text}' are not understood at '{rest}': write key:value,key:value.")
        yield match[1], match[2]
        rest = rest[match.end() :]


def _check_backend(value: str) -> None:
    if value != "native":
        raise UsageError(
            f"Allocator setting backend:{value} leaves memory to another allocator: only backend:native is known here."
        )


def _mebibytes(text: str) -> int:
    number = int(text)
    if number >= 1 << 64:  # like std::stoull, which torch uses; a negative number is below every minimum
        raise ValueError(text)
    return min(number * MIB, NO_LIMIT)


def _truth(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True"


def _divisions(text: str) -> tuple[int, ...]:
    """Return the divisions of "4" (everywhere) or "[256:1,512:2,>:4]" (up to 256 MiB 1, from 512 MiB 2, above 4)."""
    if not text.startswith("["):
        return (int(text),) * N_INTERVALS
    divisions = [0] * N_INTERVALS
    following = 1
    for number, pair in enumerate(text[1:-1].split(",")):
        start, _, count = pair.partition(":")
        if start == ">":
            divisions[following:] = [int(count)] * (N_INTERVALS - following)
            continue
        if int(start) < 1 or int(start) & (int(start) - 1):
            raise UsageError(f"roundup_power2_divisions has the interval {start}: it must be a power of two of MiB.")
        interval = min(int(start).bit_length() - 1, N_INTERVALS - 1)
        if number == 0:
            divisions[:interval] = [int(count)] * interval
        divisions[interval] = int(count)
        following = interval + 1
    return tuple(divisions)


# In the order in which torch must read them: the bounds of the second and third depend on the first.
_PARSERS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "large_segment_size_mb": ("large_segment_bytes", _mebibytes),
    "max_split_size_mb": ("max_split_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "roundup_power2_divisions": ("roundup_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", float),
    "expandable_segments": ("expandable_segments", _truth),
    "per_process_memory_fraction": ("memory_fraction", float),
}
assert {name for name, _ in _PARSERS.values()} == {field.name for field in fields(Settings)}
_KEYS: Final = frozenset({*_PARSERS, "backend"} | _WITHOUT_EFFECT)


def _text(key: str, value: object) -> str:
    if key.endswith("_mb"):
        assert isinstance(value, int)
        return str(value // MIB)
    if key == "roundup_power2_divisions":
        assert isinstance(value, tuple)
        if len(set(value)) == 1:
            return str(value[0])
        return "[" + ",".join(f"{1 << i}:{n}" for i, n in enumerate(value)) + "]"
    return str(value)
