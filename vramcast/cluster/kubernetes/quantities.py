"""Kubernetes quantities, by the grammar of its API. # spec: kubernetes.io, API reference, Quantity"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final

from vramcast.core.units import INT64_MOST

_DECIMAL: Final = ("n", "u", "m", "", *"kMGTPE")
_SUFFIXES: Final[dict[str, Fraction]] = {
    **{name: Fraction(1000) ** power for power, name in enumerate(_DECIMAL, start=-3)},
    **{f"{name}i": Fraction(1024) ** power for power, name in enumerate("KMGTPE", start=1)},
}
_SUFFIX: Final = "|".join(sorted(_SUFFIXES, key=len, reverse=True))
_QUANTITY: Final = re.compile(rf"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:({_SUFFIX})|[eE]([+-]?[0-9]+))")
_DIGITS: Final = 40  # arbitrary: more digits than 2^63 in nanos; a longer number is capped, as in the API, or rounded up


def quantity(value: Any) -> int | None:
    """Return a quantity as a whole number, rounded up and capped at 2^63 - 1 as in the API; None: it is not one.

    Args:
        value: The JSON value: a string or a number.
    """
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    sign, whole, part, alone, suffix, exponent = match.groups()
    digits, decimals = (whole or "").lstrip("0"), part or alone or ""
    if len(digits) > _DIGITS or (exponent is not None and len(exponent.lstrip("+-0")) > 2):
        is_large = exponent is None or (not exponent.startswith("-") and bool((digits + decimals).strip("0")))
        found = INT64_MOST if is_large else int(bool((digits + decimals).strip("0")))
        return -found if sign == "-" else found
    cut = decimals[:_DIGITS]
    number = Fraction(int(digits + cut or "0"), 10 ** len(cut)) + (
        Fraction(1, 10**_DIGITS) if decimals[_DIGITS:].strip("0") else 0
    )
    number *= _SUFFIXES[suffix] if exponent is None else Fraction(10) ** int(exponent)
    found = min(-(-number.numerator // number.denominator), INT64_MOST)
    return -found if sign == "-" else found
