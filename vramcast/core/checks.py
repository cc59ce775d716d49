"""Numbers as callers give them: made into what they mean, or refused by name."""

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
        name: What the value is, at the beginning of a sentence.
        value: Neither text nor a bool.
        least: The least which is accepted.
        most: The most.
        advice: Ends the sentence which says that the value is too small or too large.
    Raises:
        UsageError: it is no whole number, or out of range.
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
        name: What the value is, at the beginning of a sentence.
        value: Neither text nor a bool.
        least: The least which is accepted.
        most: The most.
    Raises:
        UsageError: it is no finite number, or out of range.
    """
    found = math.nan
    # int and float stand first: whether something follows a protocol takes longer to tell
    if isinstance(value, int | float | SupportsFloat | SupportsIndex) and not isinstance(value, bool):
        try:
            found = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of several elements, an int above 1e308
            found = math.nan
    if not math.isfinite(found):
        raise UsageError(f"{name} is {shown(value)}: a finite number is expected.")
    if not least <= found <= most:
        raise UsageError(f"{name} is {found:g}: it must lie between {least:g} and {most:g}.")
    return found


def decimal(text: str) -> int | None:
    """Return the number in decimal digits, as programs write it; None: it is something else.

    `int` takes more: `1_000`, blanks, signs, and the digits of other scripts.
    """
    return int(text) if _DIGITS.fullmatch(text) else None
