"""Settings: parsing of PYTORCH_CUDA_ALLOC_CONF, and rounding of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulator import allocator_header
from vramcast.core.errors import UsageError
from vramcast.simulator.rules import MIB, N_INTERVALS, AllocatorRules
from vramcast.simulator.settings import Settings, UnknownSetting

from .sequences import settings as any_settings

KIB = 1024


@given(any_settings())
def test_settings_round_trip_through_text(settings: Settings) -> None:
    text = str(settings)
    assert (settings if text == "default" else Settings.parse(text)) == settings


@given(st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_shares_keep_all_digits(fraction: float, threshold: float) -> None:
    settings = Settings(memory_fraction=fraction, garbage_collection_threshold=threshold)
    assert Settings.parse("" if str(settings) == "default" else str(settings)) == settings


def test_default_settings_have_no_text() -> None:
    assert str(Settings()) == "default"
    assert Settings.parse("") == Settings()


def test_text_has_only_changed_settings() -> None:
    settings = Settings(max_split_bytes=200 * MIB, expandable_segments=True, roundup_divisions=(4,) * N_INTERVALS)
    assert str(settings) == "max_split_size_mb:200,roundup_power2_divisions:4,expandable_segments:True"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("expandable_segments:True", Settings(expandable_segments=True)),
        (" expandable_segments : False ,", Settings()),
        ("max_split_size_mb:200", Settings(max_split_bytes=200 * MIB)),
        ("max_non_split_rounding_mb:33", Settings(max_non_split_rounding_bytes=33 * MIB)),
        ("large_segment_size_mb:40", Settings(large_segment_bytes=40 * MIB)),
        ("max_split_size_mb:40,large_segment_size_mb:40", Settings(max_split_bytes=40 * MIB, large_segment_bytes=40 * MIB)),
        ("garbage_collection_threshold:0.6", Settings(garbage_collection_threshold=0.6)),
        ("per_process_memory_fraction:0.5", Settings(memory_fraction=0.5)),
        ("backend:native,pinned_use_background_threads:True", Settings()),
        ("roundup_power2_divisions:8", Settings(roundup_divisions=(8,) * 16)),
        # measured: torch 2.11; the interval of 32 MiB, which is not listed, is not divided
        ("roundup_power2_divisions:[16:8,64:4,>:2]", Settings(roundup_divisions=(8, 8, 8, 8, 8, 0, 4, *(2,) * 9))),
        ("roundup_power2_divisions:[>:4]", Settings(roundup_divisions=(0, *(4,) * 15))),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", Settings(roundup_divisions=(*(1,) * 9, 2, 4, *(8,) * 5))),
        ("roundup_power2_divisions:[1048576:4]", Settings(roundup_divisions=(4,) * 16)),
    ],
)
def test_parses_text(text: str, expected: Settings) -> None:
    assert Settings.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expandable_segment:True", "Allocator setting 'expandable_segment' is unknown: torch 2.11 knows backend, "),
        ("expandable_segments:1", "Allocator setting expandable_segments:1 is not understood: see torch's notes on CUDA."),
        ("max_split_size_mb:big", "Allocator setting max_split_size_mb:big is not understood"),
        ("garbage_collection_threshold:", "Allocator settings 'garbage_collection_threshold:' are not understood at 'gar"),
        ("expandable_segments", "Allocator settings 'expandable_segments' are not understood at 'expandable_segments'"),
        ("max_split_size_mb:30,x", "Allocator settings 'max_split_size_mb:30,x' are not understood at 'x'"),
        ("roundup_power2_divisions:[4:2", "are not understood at 'roundup_power2_divisions:[4:2'"),
        ("roundup_power2_divisions:[]", "Allocator setting roundup_power2_divisions:[] is not understood"),
        ("roundup_power2_divisions:[4]", "Allocator setting roundup_power2_divisions:[4] is not understood"),
        ("roundup_power2_divisions:[3:4]", "roundup_power2_divisions has the interval 3: it must be a power of two of MiB."),
        ("roundup_power2_divisions:[0:4]", "roundup_power2_divisions has the interval 0: it must be a power of two of MiB."),
        ("roundup_power2_divisions:3", "roundup_power2_divisions must be powers of two, or 0 for no rounding."),
        ("roundup_power2_divisions:[4:2,>:5]", "roundup_power2_divisions must be powers of two, or 0 for no rounding."),
        ("roundup_power2_divisions:-4", "roundup_power2_divisions must be powers of two, or 0 for no rounding."),
        ("backend:cudaMallocAsync", "Allocator setting backend:cudaMallocAsync leaves memory to another allocator"),
        ("large_segment_size_mb:10", "large_segment_size_mb is 10: it must be more than 10."),
        ("max_split_size_mb:19", "max_split_size_mb is 19: it must be at least 20, the size of a large segment."),
        ("max_non_split_rounding_mb:30,large_segment_size_mb:40", "max_non_split_rounding_mb is 30: it must be at least 40"),
        ("garbage_collection_threshold:1", "garbage_collection_threshold is 1: it must lie between 0 and 1."),
        ("garbage_collection_threshold:-0.1", "garbage_collection_threshold is -0.1: it must lie between 0 and 1."),
        ("garbage_collection_threshold:nan", "garbage_collection_threshold is nan: it must lie between 0 and 1."),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction is 1.5: it must lie between 0 and 1."),
    ],
)
def test_rejects_wrong_text_with_reason(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "request_bytes", "block_bytes"),
    [
        ("", 1, 512),
        ("", 512, 512),
        ("", 513, 1024),
        ("", 70 * MIB + 1, 70 * MIB + 512),
        # measured: the null GPU, torch 2.11
        ("roundup_power2_divisions:4", 1200 * KIB, 1280 * KIB),
        ("roundup_power2_divisions:4", 70 * MIB, 80 * MIB),
        ("roundup_power2_divisions:4", 700, 1024),
        ("roundup_power2_divisions:4", 3000, 3072),
        ("roundup_power2_divisions:4", 2048, 2048),
        ("roundup_power2_divisions:4", 2049, 2560),
        ("roundup_power2_divisions:4", 64 * MIB, 64 * MIB),
        ("roundup_power2_divisions:4", 120 * MIB, 128 * MIB),
        ("roundup_power2_divisions:1", 1200 * KIB + 1, 1200 * KIB + 512),
        ("roundup_power2_divisions:[16:8,64:4,>:2]", 17 * MIB, 18 * MIB),
        ("roundup_power2_divisions:[16:8,64:4,>:2]", 33 * MIB + 1, 33 * MIB + 512),
        ("roundup_power2_divisions:[16:8,64:4,>:2]", 65 * MIB, 80 * MIB),
        ("roundup_power2_divisions:[16:8,64:4,>:2]", 129 * MIB, 192 * MIB),
        ("roundup_power2_divisions:[16:8,64:4,>:2]", 1000 * KIB, 1024 * KIB),
        ("roundup_power2_divisions:[>:4]", 2 * MIB - 1, 2 * MIB),
        ("roundup_power2_divisions:[>:4]", 1025 * KIB, 1025 * KIB),
        ("roundup_power2_divisions:[>:4]", 2 * MIB + 1, 2 * MIB + 512 * KIB),
        ("roundup_power2_divisions:[>:4]", 200 << 30, 224 << 30),
    ],
)
def test_rounds_requests(text: str, request_bytes: int, block_bytes: int) -> None:
    assert Settings.parse(text).round_bytes(request_bytes) == block_bytes


@given(any_settings(), st.integers(0, 1 << 40))
def test_rounding_is_idempotent(settings: Settings, size_bytes: int) -> None:
    rounded = settings.round_bytes(size_bytes)
    assert settings.round_bytes(rounded) == rounded
    assert rounded % 512 == 0
    assert max(size_bytes, 512) <= rounded <= max(2 * size_bytes, 512)


@pytest.mark.parametrize(
    ("block_bytes", "segment_bytes"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (70 * MIB, 70 * MIB),
        (71 * MIB, 72 * MIB),
    ],
)
def test_segments_have_torchs_size(block_bytes: int, segment_bytes: int) -> None:
    assert Settings().segment_bytes(block_bytes) == segment_bytes


def test_large_segment_size_is_configurable() -> None:
    settings = Settings.parse("large_segment_size_mb:40")
    assert [settings.segment_bytes(size) for size in (512, 3 * MIB, 10 * MIB)] == [2 * MIB, 40 * MIB, 10 * MIB]


# ------------------------------------------------------------------------------------------------ releases of torch
# measured: `python -m benchmarks.new_torch`, which applies these texts to each release on the null GPU; 2.13 from its
# headers.
RELEASES = ("2.6.0", "2.9.1", "2.10.0", "2.11.0", "2.13.0", "2.15.0")
ACCEPTED_SINCE = {
    "max_split_size_mb:21": "2.6.0",
    "max_split_size_mb:20": "2.10.0",
    "max_non_split_rounding_mb:20": "2.10.0",
    "graph_capture_record_stream_reuse:True": "2.9.1",
    "per_process_memory_fraction:0.5": "2.10.0",
    "pinned_reserve_segment_size_mb:4": "2.10.0",
    "large_segment_size_mb:40": "2.11.0",
    "pinned_free_catch_all:True": "2.13.0",
    "pinned_max_cached_size_mb:4": "2.13.0",
    "pinned_max_round_threshold_mb:4": "2.13.0",
}


@pytest.mark.parametrize("text", ACCEPTED_SINCE)
@pytest.mark.parametrize("torch", RELEASES)
def test_release_accepts_its_settings(text: str, torch: str) -> None:
    rules = AllocatorRules.of(torch)
    if RELEASES.index(torch) >= RELEASES.index(ACCEPTED_SINCE[text]):
        Settings.parse(text, rules)
    else:
        with pytest.raises(UsageError, match=r"torch 2\.\d+"):
            Settings.parse(text, rules)


@pytest.mark.parametrize("text", ["throw_on_cudamalloc_oom:True", "expandable_segments_reserve:0.5"])
def test_rejects_unsimulated_settings_in_every_release(text: str) -> None:
    with pytest.raises(UnknownSetting):
        Settings.parse(text, AllocatorRules.of("2.15.0"))


@pytest.mark.parametrize("text", ["", "expandable_segments:True", "max_split_size_mb:64,roundup_power2_divisions:4"])
def test_common_settings_mean_the_same_everywhere(text: str) -> None:
    assert len({Settings.parse(text, AllocatorRules.of(torch)) for torch in RELEASES}) == 1


@pytest.mark.parametrize(
    ("torch", "release"),
    [("2.8.0+cu126", (2, 8)), ("2.15.0.dev20261101+cu132", (2, 15)), ("2.0.1", (2, 0)), (None, (2, 11)), ("a fork", (2, 11))],
)
def test_selects_rules_of_named_release(torch: str | None, release: tuple[int, int]) -> None:
    assert AllocatorRules.of(torch).release == release


def test_c_header_matches_rules() -> None:
    assert allocator_header.PATH.read_text() == allocator_header.header()
