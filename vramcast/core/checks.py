"""Checks and conversions of numbers from callers."""

from __future__ import annotations

import math
import operator
import re
from typing import Final, SupportsFloat, SupportsIndex

from vramcast.core.errors import UsageError
from vramcast.core.text import shown
from vramcast.core.units import INT64_MOST

INT64_LEAST: Final = -(2**63)  # spec: int64
_DIGITS: Final = re.compile(r"[0-9]{1,18}")  # an int64 holds each of them


def whole(name: str, value: object, *, least: int = INT64_LEAST, most: int = INT64_MOST, advice: str = "") -> int:
    """Return `value` as an int: 3, 3.0 and numpy.int64(3) are 3.

    Args:
        name: Name of the value, at the beginning of a sentence.
        value: The value, neither text nor a bool.
        least: The smallest accepted value.
        most: The largest accepted value.
        advice: End of the message about a value out of range.
    Raises:
        UsageError: The value is not a whole number, or out of range.
    """
    found = None
    if isinstance(value, float):
        found = int(value) if value.is_integer() else None
    elif isinstance(value, int | SupportsIndex) and not isinstance(value, bool):
        try:
            found = operator.index(value)
        except TypeError:  # a tensor of several elements, numpy's bool
            found = None
    if found is None:
        raise UsageError(f"{name} is {shown(value)}: a whole number is expected.")
    if found < least:
        raise UsageError(f"{name} is {shown(found)}: at least {least} is needed{advice}.")
    if found > most:
        raise UsageError(f"{name} is {shown(found)}: at most {most} is possible{advice}.")
    return found


def number(name: str, value: object, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Return `value` as a finite float.

    Args:
        name: Name of the value, at the beginning of a sentence.
        value: The value, neither text nor a bool.
        least: The smallest accepted value.
        most: The largest accepted value.
    Raises:
        UsageError: The value is not a finite number, or out of range.
    """
    found = math.nan
    # int and float come first, because a check of a protocol takes longer
    if isinstance(value, int | float | SupportsFloat | SupportsIndex) and not isinstance(value, bool):
        try:
            found = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of several elements, an int above 1e308
            found = math.nan
    if not math.isfinite(found):
        raise UsageError(f"{name} is {shown(value)}: a finite number is expected.")
    if not least <= found <= most:
        expected = f"at least {least:g} is needed" if most == math.inf else f"it must be between {least:g} and {most:g}"
        raise UsageError(f"{name} is {str(found).removesuffix('.0')}: {expected}.")
    return found


def decimal(text: str) -> int | None:
    """Return the value of a text of decimal digits; None for any other text.

    `int` accepts more: `1_000`, blanks, signs, and the digits of other scripts.
    """
    return int(text) if _DIGITS.fullmatch(text) else None
