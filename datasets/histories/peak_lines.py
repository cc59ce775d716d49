"""Lines of a log with a peak of torch's allocator: the quantity and its unit.

A line counts only if its unit is certain: KiB, MiB, GiB and bytes are exact, MB and GB are the source's divisor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from vramcast.core.errors import DatasetError
from vramcast.core.units import GIB, KIB, MIB

Base: TypeAlias = Literal[1000, 1024]

_BLOCK: Final = 512  # spec: c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize: every count of torch is a multiple
_SURE: Final = {"b": 1, "byte": 1, "bytes": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB}
_POWER: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
NUMBER: Final = r"(\d[\d,_]{0,30}(?:\.\d{1,30})?)"
_UNIT: Final = r"(bytes?|[kmgt](?:i?b)?|b)"
_SIZE: Final = rf"{NUMBER}(?:\s?{_UNIT})?(?![\w.%])"
# Divisors of peaks in a source
_DIVIDED: Final = re.compile(r"max_memory_(?:allocated|reserved)\([^()]*\)\s*\)*\s*/{1,2}\s*([\w\s*./()<]{1,40})")
_BINARY: Final = re.compile(r"^\(?\s*(1024|1048576|1073741824|2\s*\*\*|1\s*<<)")
_DECIMAL: Final = re.compile(r"^\(?\s*(1000|1_000|1e[369]\b|1\.0?e[369]\b|10\s*\*\*)")

# Lines --------------------------------------------------------------------------------------------------------------
_GAP: Final = r"[\s_]{1,4}"  # bounded, like all of them: a hostile line costs no more than a normal one
_OF: Final = r"(?:gpu|cuda|vram|device|mem|memory)"
# `max_memory_allocated: 3.2 GiB`, `Peak GPU memory reserved (MiB): 900`, `"peak_cuda_allocated_gb": 5`, and what follows
_PLAIN: Final = re.compile(
    rf"(?<![a-z])(?:max|peak)(?:{_GAP}{_OF}){{0,3}}{_GAP}(alloc(?:ated)?|reserved|consumption)(?![a-z])(?:{_GAP}{_OF}(?![a-z])){{0,2}}"
    rf"(?:\(\w{{0,9}}\))?(?:{_GAP}?[(\[]?{_UNIT}[)\]]?(?![a-z]))?[\s\"']{{0,4}}[:=]?[\s\"']{{0,9}}{_SIZE}"
    rf"(?:[\s,;|/]{{1,4}}reserved[\s:=]{{1,4}}{_SIZE})?",
    re.IGNORECASE,
)
_TITAN: Final = re.compile(rf"(?<![\w/])memory:\s*{NUMBER}GiB\(")
_QLORA: Final = re.compile(rf"memory/(allocated|reserved)_peak: {NUMBER}\s*$")
_NANOVLM: Final = re.compile(
    rf"(?:^Peak VRAM allocated for batch size|^Batch Size) (\d{{1,9}}): (OOM \(Peak before OOM: )?{NUMBER} MB"
)
_FULL: Final = re.compile(r"CUDA out of memory\. Tried to allocate ")
_FULL_SAYS: Final = {
    "asked": re.compile(rf"Tried to allocate {NUMBER} (bytes|[KMG]iB)"),
    "total": re.compile(rf"(?:total capacity of {NUMBER} ([KMG]iB)|{NUMBER} ([KMG]iB) total capacity)"),
    "allocated": re.compile(rf"{NUMBER} ([KMG]iB|bytes) (?:is allocated by PyTorch|already allocated)"),
    "idle": re.compile(rf"{NUMBER} ([KMG]iB|bytes) is reserved by PyTorch but unallocated"),
    "reserved": re.compile(rf"{NUMBER} ([KMG]iB|bytes) reserved in total by PyTorch"),
    "process": re.compile(rf"this process has {NUMBER} ([KMG]iB|bytes) memory in use"),
}


@dataclass(frozen=True, slots=True)
class LoggedPeak:
    """One line of a log with peaks, in bytes; it is a run of its own if it has a batch size."""

    place: int
    text: str
    allocated: int | None = None
    reserved: int | None = None
    batch_size: int | None = None
    is_full: bool = False
    asked: int | None = None
    process: int | None = None
    total: int | None = None


def base_of(source: str) -> Base | None:
    """Return the base of a source's MB, 1000 or 1024, from the divisor of its peaks; None: it has none, or both."""
    divisors = [divisor.strip() for divisor in _DIVIDED.findall(source)]
    is_binary = any(_BINARY.match(divisor) for divisor in divisors)
    is_decimal = any(_DECIMAL.match(divisor) for divisor in divisors)
    return None if is_binary == is_decimal else 1024 if is_binary else 1000


def _bytes(number: str, unit: str, base: Base | None = None) -> int | None:
    """Return a printed size, None if it is 0.

    Raises:
        DatasetError: Its unit is not certain.
    """
    digits = number.replace(",", "").replace("_", "")
    value, named = float(digits), unit.lower()
    if not value:
        return None
    if not named:
        if not digits.isdigit() or int(digits) % _BLOCK or int(digits) < MIB:
            raise DatasetError(
                f"{number[:40]} has no unit, and is not a count of bytes as torch prints it (a multiple of "
                "512, at least 1 MiB): the unit is unknown.",
                kind="the unit of a peak is unknown",
            )
        return int(digits)
    unit_bytes = _SURE.get(named)
    if unit_bytes is None:
        if base is None:
            raise DatasetError(
                f"{unit} may be based on 1000 or 1024, and no source shows the divisor: give the script (--script FILE)."
            )
        unit_bytes = base ** _POWER[named[0]]
    size = int(digits) * unit_bytes if digits.isdigit() else value * unit_bytes
    if not size < 2**63:
        raise DatasetError(
            f"{number[:40]} {unit} exceeds the memory of any card.", kind="a peak exceeds the memory of any card"
        )
    return round(size)


# Lines --------------------------------------------------------------------------------------------------------------
def _plain(place: int, line: str, base: Base | None) -> LoggedPeak | None:
    found = _PLAIN.search(line)
    if found is None:
        return None
    kind, named, number, unit, second, second_unit = found.groups()
    first = _bytes(number, unit or named or "", base)
    after = _bytes(second, second_unit or "", base) if second else None
    # spec: modded-nanogpt's first scripts print max_memory_allocated as "consumption"
    return LoggedPeak(place, line, reserved=first) if kind.lower() == "reserved" else LoggedPeak(place, line, first, after)


def _titan(place: int, line: str, base: Base | None) -> LoggedPeak | None:
    found = _TITAN.search(line)
    return LoggedPeak(place, line, reserved=_bytes(found[1], "GiB")) if found else None


def _qlora(place: int, line: str, base: Base | None) -> LoggedPeak | None:
    found = _QLORA.search(line)
    return LoggedPeak(place, line, **{found[1]: _bytes(found[2], "bytes")}) if found else None  # type: ignore[arg-type]


def _nanovlm(place: int, line: str, base: Base | None) -> LoggedPeak | None:
    found = _NANOVLM.search(line)
    if found is None:
        return None
    # spec: huggingface/nanoVLM, measure_vram.py: its MB are 1024 ** 2 bytes
    return LoggedPeak(place, line, _bytes(found[3], "MiB"), batch_size=int(found[1]), is_full=bool(found[2]))


def _full(place: int, line: str, base: Base | None) -> LoggedPeak | None:
    """Return the peak in torch's out-of-memory message, from 2.1 on or before: the memory held then is a lower bound."""
    if not _FULL.search(line):
        return None
    said: dict[str, int | None] = {}
    for name, pattern in _FULL_SAYS.items():
        found = pattern.search(line)
        groups = [group for group in found.groups() if group] if found else []
        said[name] = _bytes(groups[0], groups[1]) if groups else None
    allocated, idle = said["allocated"], said["idle"]
    reserved = said["reserved"] or (allocated + (idle or 0) if allocated is not None else None)
    return LoggedPeak(
        place, line, allocated, reserved, is_full=True, asked=said["asked"], process=said["process"], total=said["total"]
    )


_SHAPES: Final = (_full, _nanovlm, _qlora, _titan, _plain)


def peak_of(place: int, line: str, base: Base | None) -> LoggedPeak | None:
    """Return the peaks in a line, None if it has none.

    Args:
        place: Its number.
        line: Its text without colors.
        base: Base of its MB and GB; None: unknown.
    Raises:
        DatasetError: Its unit is not certain.
    """
    return next((peak for shape in _SHAPES if (peak := shape(place, line, base)) is not None), None)
