"""Sizes as text: parsing and formatting."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.core.units import GIB, KIB, MIB, gib, parse_bytes, torch_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("12622168064", 12622168064),
        ("1", 1),
        ("12GiB", 12 * 1073741824),
        ("12 gib", 12 * 1073741824),
        (" 1.5GiB ", 1610612736),
        ("80GB", 80 * 10**9),
        ("512MiB", 536870912),
        ("4KiB", 4096),
        ("7kB", 7000),
        ("3MB", 3000000),
        ("99b", 99),
        ("0.5KiB", 512),
    ],
)
def test_parses_sizes_with_and_without_unit(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "12 apples", "-1", "-5GiB", "1e9", "0x10", "12GiBs", "1.2.3GiB", "٣GiB x", "nan", "12G", "１２GiB"],
)
def test_rejects_malformed_size(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_bytes(text)
    assert f"'{text}'" in str(error.value)
    assert "12GiB" in str(error.value)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.0MiB", "0.1b"])
def test_rejects_size_of_zero(text: str) -> None:
    with pytest.raises(UsageError, match="is not positive: write"):
        parse_bytes(text)


def test_rejects_size_beyond_int64() -> None:
    with pytest.raises(UsageError, match=r"2\^63 bytes"):
        parse_bytes("99999999999999999999999GiB")
    with pytest.raises(UsageError, match="is not understood") as error:
        parse_bytes("9" * 5000)
    assert len(str(error.value)) < 200


@given(st.integers(1, 2**60))
def test_parses_plain_number_exactly(size_bytes: int) -> None:
    assert parse_bytes(str(size_bytes)) == size_bytes


@given(st.integers(1, 2**30), st.sampled_from([("KiB", KIB), ("MiB", MIB), ("GiB", GIB), ("GB", 10**9)]))
def test_parses_whole_units_exactly(count: int, unit: tuple[str, int]) -> None:
    assert parse_bytes(f"{count}{unit[0]}") == count * unit[1]


@given(st.text(max_size=12))
def test_any_text_parses_or_raises_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_bytes(text) > 0


def test_gib_switches_to_mib_below_one_gib() -> None:
    assert gib(GIB) == "1.00 GiB"
    assert gib(3_495_952_384) == "3.26 GiB"  # 3495952384 / 1073741824 = 3.2559
    assert gib(GIB - 1) == "1024.0 MiB"
    assert gib(0) == "0.0 MiB"
    assert gib(-2 * GIB) == "-2.00 GiB"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (20 * MIB, "20.00 MiB"),
        (GIB, "1024.00 MiB"),
        (5 * GIB // 4, "1.25 GiB"),
    ],
)
def test_torch_size_matches_torch(size_bytes: int, text: str) -> None:
    assert torch_size(size_bytes) == text
