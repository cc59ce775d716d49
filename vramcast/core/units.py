"""Sizes as text. In code, a size is an `int` in bytes."""

from __future__ import annotations

import re

from vramcast.core.errors import UsageError
from vramcast.core.text import shorten

KIB = 1024  # spec: IEC 80000-13
MIB = 1024**2  # spec: IEC 80000-13
GIB = 1024**3  # spec: IEC 80000-13

INT64_MOST = 2**63 - 1  # spec: int64, the type of sizes in torch, traces and the driver
_LONGEST = 40  # arbitrary: characters of a size; an int64 has 19 digits

_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_bytes(text: str) -> int:
    """Parse a size.

    Args:
        text: A number of bytes (`12622168064`), or a number with a unit: `12GiB`, `12.5 MiB`, `80GB` (10^9).

    Returns:
        Bytes, > 0 and at most an int64.

    Raises:
        UsageError: `text` is not a size.

    Example:
        >>> vramcast.parse_bytes("12GiB")
        12884901888
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text) if len(text) <= _LONGEST else None
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        text = shorten(text, _LONGEST)
        raise UsageError(f"Size '{text}' is not understood: write bytes (12622168064) or a unit (12GiB, 12000MiB, 12GB).")
    size_bytes = round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if size_bytes <= 0:
        raise UsageError(f"Size '{text}' is not positive: write the bytes of the card, for example 12GiB.")
    if size_bytes > INT64_MOST:
        raise UsageError(f"Size '{text}' is more than 2^63 bytes: write for example 12GiB.")
    return size_bytes


def gib(size_bytes: int) -> str:
    """Format a size for people.

    Args:
        size_bytes: Bytes.

    Returns:
        Text in GiB with two decimals, or in MiB with one below 1 GiB.

    Example:
        >>> vramcast.gib(3_500_000_000), vramcast.gib(1_000_000)
        ('3.26 GiB', '1.0 MiB')
    """
    return f"{size_bytes / GIB:.2f} GiB" if abs(size_bytes) >= GIB else f"{size_bytes / MIB:.1f} MiB"


def torch_size(size_bytes: int) -> str:
    """Format a size as torch does in its out-of-memory message: `512 bytes`, `20.00 MiB`, `1.25 GiB`.

    Source: format_size in c10/core/CachingDeviceAllocator.h, torch 2.11.
    """
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes > unit:
            return f"{size_bytes / unit:.2f} {name}"
    return f"{size_bytes} bytes"
