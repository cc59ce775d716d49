"""Checks and conversions of numbers from callers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from vramcast.core.checks import number, whole
from vramcast.core.errors import UsageError


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.uint8(3), np.float64(3)])
def test_whole_accepts_any_integer_type(value: object) -> None:
    assert whole("steps", value) == 3
    assert type(whole("steps", value)) is int


@pytest.mark.parametrize(
    "value", ["3", b"3", None, True, np.bool_(True), 2.5, math.nan, math.inf, [3], 3j, np.array([3, 4]), "9" * 5000]
)
def test_whole_rejects_other_values(value: object) -> None:
    with pytest.raises(UsageError, match=r"^steps is .*: a whole number is expected\.$") as error:
        whole("steps", value)
    assert len(str(error.value)) < 200


def test_whole_names_the_range() -> None:
    assert (whole("n", 1, least=1), whole("n", 9, most=9)) == (1, 9)
    with pytest.raises(UsageError, match=r"n is 0: at least 1 is needed, one is enough\."):
        whole("n", 0, least=1, advice=", one is enough")
    with pytest.raises(UsageError, match=r"n is 10: at most 9 is possible\."):
        whole("n", 10, most=9)
    with pytest.raises(UsageError, match="at most 9223372036854775807"):
        whole("n", 2**63)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), Fraction(1, 2)])
def test_number_accepts_any_numeric_type(value: object) -> None:
    assert number("lr", value) == 0.5
    assert type(number("lr", value)) is float


@pytest.mark.parametrize("value", ["0.9", None, True, math.nan, math.inf, -math.inf, 10**400, [1.0], 1j, np.zeros(2)])
def test_number_rejects_other_values(value: object) -> None:
    with pytest.raises(UsageError, match=r"^lr is .*: a finite number is expected\.$"):
        number("lr", value)


def test_number_names_the_range() -> None:
    assert number("lr", 0, least=0.0, most=1.0) == 0.0
    with pytest.raises(UsageError, match="lr is -1: it must be between 0 and 1"):
        number("lr", -1, least=0.0, most=1.0)
    with pytest.raises(UsageError, match=r"level is 0\.999999999: it must be between 0 and 0\.999999\.$"):
        number("level", 0.999999999, least=0.0, most=1 - 1e-6)
