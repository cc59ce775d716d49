"""Large lists of numbers from a file that may come from anywhere, checked all at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from vramcast.core.plain import from_plain


def numbers(values: Any, what: str, low: float, high: float, kind: type[float] | type[int] = float) -> npt.NDArray[Any]:
    """Return a list of numbers between `low` and `high`; of kind int all must be whole, and the limits below 2^53.

    Raises:
        ValueError: it is something else; the message begins with `what`.
    """
    if not set(map(type, from_plain(list, values, what))) <= {int, kind}:
        raise ValueError(f"{what} has something else than {'whole ' if kind is int else ''}numbers")
    try:
        found = np.array(values, np.float64)
    except OverflowError:  # an integer of a thousand digits
        found = np.array([math.inf])
    if not ((low <= found) & (found <= high)).all():
        raise ValueError(f"{what} is not always from {low:g} to {high:g}")
    return found.astype(kind)
