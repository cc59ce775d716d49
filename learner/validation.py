"""Values of a file which may come from anywhere: of their type, finite, in their range, or a ValueError says which is not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def parse(content: bytes) -> Any:
    """Return the JSON values of a file, nested as deep as a person would.

    Raises:
        ValueError: it is no JSON, or has NaN or infinity, which JSON has not. A number may still be too large: 1e400.
    """
    try:
        return json.loads(content, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no number")


def number(value: Any, what: str, low: float, high: float) -> float:
    """Return a number between `low` and `high`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{what} is {str(value)[:40]}, {low:g} to {high:g} is expected")
    return float(value)


def numbers(values: Any, what: str, low: float, high: float) -> Array:
    """Return a list of numbers between `low` and `high`, many at once."""
    if not set(map(type, listed(values, what))) <= {int, float}:
        raise ValueError(f"{what} has something else than numbers")
    try:
        found = np.array(values, np.float64)
    except OverflowError:  # an integer of a thousand digits
        found = np.array([math.inf])
    if not ((low <= found) & (found <= high)).all():
        raise ValueError(f"{what} is not always from {low:g} to {high:g}")
    return found


def wholes(values: Any, what: str, low: int, high: int) -> npt.NDArray[np.int64]:
    """Return a list of whole numbers between `low` and `high`, below 2^53."""
    if not set(map(type, listed(values, what))) <= {int}:
        raise ValueError(f"{what} has something else than whole numbers")
    return numbers(values, what, low, high).astype(np.int64)


def whole(value: Any, what: str, low: int, high: int) -> int:
    """Return a whole number between `low` and `high`."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{what} is {str(value)[:40]}, a whole number from {low} to {high} is expected")
    return value


def text(value: Any, what: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {str(value)[:40]}, a text is expected")
    return value


def texts(value: Any, what: str) -> list[str]:
    """Return a list of texts."""
    return [text(one, what) for one in listed(value, what)]


def listed(value: Any, what: str) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is {str(value)[:40]}, a list is expected")
    return value


def named(value: Any, what: str) -> Mapping[str, Any]:
    """Return an object."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {str(value)[:40]}, an object is expected")
    return value
