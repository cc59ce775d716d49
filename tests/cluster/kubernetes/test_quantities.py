"""Quantities in the API documentation's own examples."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cluster.kubernetes.quantities import quantity
from vramcast.core.units import INT64_MOST


# spec: kubernetes.io, "Resource Management for Pods and Containers" and the API reference's Quantity
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("128974848", 128_974_848),
        ("129e6", 129_000_000),
        ("129M", 129_000_000),
        ("128974848000m", 128_974_848),
        ("123Mi", 128_974_848),
        ("500m", 1),
        ("0.5", 1),
        ("1500m", 2),
        ("1.5Gi", 3 << 29),
        ("1536Mi", 1536 << 20),
        ("0.1m", 1),
        ("400m", 1),
        ("400Mi", 400 << 20),
        ("3k", 3000),
        ("3Ki", 3072),
        ("2M", 2_000_000),
        ("2G", 2 * 10**9),
        ("2Gi", 2 << 30),
        ("2T", 2 * 10**12),
        ("2Ti", 2 << 40),
        ("2P", 2 * 10**15),
        ("2Pi", 2 << 50),
        ("2E", 2 * 10**18),
        ("2Ei", 2 << 60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("1e-3", 1),
        ("2000000000n", 2),
        ("2000000u", 2),
        ("+5", 5),
        ("-5", -5),
        (".5k", 500),
        ("5.", 5),
        ("00012", 12),
        ("0", 0),
        (7, 7),
        (1.5, 2),
        ("8Ei", INT64_MOST),
        ("9" * 5000, INT64_MOST),
        ("1e999999999", INT64_MOST),
        ("1e-999999999", 1),
        ("0e999999999", 0),
        ("0." + "0" * 5000 + "1", 1),
        ("-" + "9" * 5000, -INT64_MOST),
        ("0" * 5000 + "3", 3),
    ],
)
def test_matches_values_of_the_api(text: Any, value: int) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "k",
        "1K",
        "1mi",
        "1ki",
        "1 k",
        " 1",
        "1_000",
        "１",
        "1e",
        "1e1.5",
        "1.2.3",
        "--1",
        "0x10",
        "1KiB",
        ".",
        True,
        None,
        [],
        "1k\n",
    ],
)
def test_other_text_is_none(text: Any) -> None:
    assert quantity(text) is None


@given(st.integers(0, 10**9), st.integers(0, 999), st.sampled_from(["", "k", "Mi", "e3", "m"]))
def test_decimals_are_exact_and_rounded_up(whole: int, thousandths: int, suffix: str) -> None:
    factor = {"": Fraction(1), "k": Fraction(1000), "Mi": Fraction(1 << 20), "e3": Fraction(1000), "m": Fraction(1, 1000)}[
        suffix
    ]
    exact = (whole + Fraction(thousandths, 1000)) * factor
    assert quantity(f"{whole}.{thousandths:03d}{suffix}") == -(-exact.numerator // exact.denominator)
