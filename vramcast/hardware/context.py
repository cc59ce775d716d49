"""Memory of a process on the card outside PyTorch's segments: the CUDA context and the libraries loaded into it.

    process = reserved (from the simulator) + context (from this table) [+ CUDA graphs, custom kernels: not modelled]

Unless the site measured its own (`vramcast doctor --measure-context`), these are constants published or fitted by others, or
computed here from published numbers (vramcast/hardware/cards.toml). For contexts after kernels, the main source is PyTorch's
own out-of-memory message, which since 2.1 gives NVML's memory of the process, the allocated memory, and the rest of the
reserved memory:

    context = "this process has X in use" - "Y is allocated by PyTorch" - "Z is reserved by PyTorch but unallocated"

Each number has two decimals of a GiB, so one message is accurate to about 15 MiB; a row has the median of several, and their
range.

The messages contain neither the CUDA version (PyTorch's wheels of those years are built for CUDA 12) nor the loaded libraries
(inferred: a job with a GEMM has cuBLAS, one with a convolution cuDNN).

The size depends mainly on how kernels are loaded. With CUDA 11, all kernels of a library are loaded with the library (1.3 to
1.7 GiB); later versions load each kernel at its first use (PyTorch requests that since 1.13). The rest grows with the number
of resident threads of the card, which is the rule for cards without a row.

The uncertainty of a context is the spread of the measurements, by how much of it was measured on the card (`ContextSource`).
"""

from __future__ import annotations

import functools
import math
import statistics
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.core.units import MIB
from vramcast.hardware.card_file import ContextRow, Interval
from vramcast.hardware.cards import DEVICES, built_in, site_file
from vramcast.hardware.cards import device as find_device
from vramcast.hardware.device import Device, squeezed

LIBRARIES = ("cublas", "cudnn", "nccl")
BARE: Final[frozenset[str]] = frozenset()
# Contexts measured by others: with kernels loaded with their library (CUDA 11 and older), and at first use (CUDA 12 and 13).
EAGER: Final = tuple(row for row in built_in().contexts if row.cuda)
LAZY: Final = tuple(row for row in built_in().contexts if not row.cuda)
EAGER_ELSEWHERE: Final = ContextRow(
    gpus=(),
    libraries=BARE,
    # measured: V100 as in cards.toml; low end: 616 MiB with CUDA_MODULE_LOADING=DEFAULT, https://github.com/pytorch/pytorch/pull/86509
    size=Interval(1343, 616, 1679),
    source="other cards with CUDA 11",
    seen=(1343,),
)


def threads_of(row: ContextRow) -> float:
    """Return the number of resident threads of a row's card, in units of 1024."""
    return kilothreads(DEVICES[row.gpus[0]])


def kilothreads(card: Device) -> float:
    """Return the number of resident threads of a card, in units of 1024."""
    return card.sm_count * card.threads_per_sm / 1024


@functools.lru_cache(maxsize=512)
def bare_mib(threads_1024: float, rows: tuple[ContextRow, ...] = LAZY) -> float:
    """Return the bare context of a card without a row: that of a card with as many threads, or else by the rule.

    The rule is a constant plus a share for each resident thread, fitted to the bare rows by least squares of relative errors:
    size / threads is linear in 1 / threads.
    """
    bare = [row for row in rows if row.libraries == BARE]
    alike = [row.size.mib for row in bare if threads_of(row) == threads_1024]
    if alike:
        return statistics.median(alike)
    fitted = statistics.linear_regression(
        [1 / threads_of(row) for row in bare], [row.size.mib / threads_of(row) for row in bare]
    )
    return fitted.slope + fitted.intercept * threads_1024


@functools.lru_cache(maxsize=512)
def kernels_mib(threads_1024: float, rows: tuple[ContextRow, ...] = LAZY) -> float:
    """Return the memory that kernels add to a bare context: as on a card with as many threads, or else by the rule.

    The rule is the median of the added memory per thread.
    """
    bare = {row.gpus[0]: row.size.mib for row in rows if row.libraries == BARE}
    after = [row for row in rows if row.libraries != BARE]
    alike = [row for row in after if threads_of(row) == threads_1024]
    shares = [
        (row.size.mib - bare.get(row.gpus[0], bare_mib(threads_of(row), rows))) / threads_of(row) for row in alike or after
    ]
    return statistics.median(shares) * threads_1024


class ContextSource(Enum):
    """Origin of a context's size; each class has its own spread."""

    SITE = "the site's own measurement"
    MEASURED = "this card with the same minor release of torch"
    OTHER_STACK = "this card with another torch, driver or CUDA"
    INTERPOLATED = "other cards, by the threads that a card can hold"


# Measured contexts relative to the assumed ones, by whether kernels ran and by the origin of the assumption.
_SPREADS: Final[dict[str, dict[str, list[float]]]] = tomllib.loads(
    Path(__file__).with_name("context_spreads.toml").read_text(encoding="utf-8")
)


@brief
@dataclass(frozen=True, slots=True)
class Context:
    """Bytes outside PyTorch's segments.

    Attributes:
        bytes: The point estimate.
        low_bytes: Lower end of the plausible range.
        high_bytes: Upper end of the plausible range.
        provenance: Origin of the number, for reports.
        assumed: Whether this combination of card, CUDA and libraries was not measured.
        outside_bytes: The part that the job's libraries allocated themselves, outside PyTorch's allocator.
        added: Low end, point and high end of the part that depends on the job's ranks: NCCL, contexts of others.
        source: Origin of the context itself, without NCCL and others.
        own_bytes, own_high_bytes: Point and upper end of the context itself.
        spread: Ratios of measured to assumed contexts of this kind, minus 1; ascending.
    """

    bytes: int
    low_bytes: int
    high_bytes: int
    provenance: str
    assumed: bool
    outside_bytes: int = 0
    added: tuple[int, int, int] = (0, 0, 0)
    source: ContextSource = ContextSource.INTERPOLATED
    own_bytes: int = 0
    own_high_bytes: int = 0
    spread: tuple[float, ...] = field(default=(), repr=False)

    @property
    def has_nccl(self) -> bool:
        """Return whether communicators of NCCL are part of it."""
        return "nccl" in self.provenance.lower()

    def above_bytes(self, level: float) -> int:
        """Return the bytes above the point that a share `level` of such contexts stays below; 0 up to level 0.5.

        With n measurements, the highest level is n / (n + 1); a higher one uses the largest measurement.
        """
        return sum(self.parts_above(level).values())

    def parts_above(self, level: float) -> dict[str, int]:
        """Split `above_bytes` into the context itself (`context`), and NCCL and other ranks' contexts (`libraries`).

        The context has a distribution. The libraries have a point and two ends, and approach the upper end as the level grows.
        The sum assumes that both are large at once, which is conservative.
        """
        libraries_bytes = (self.high_bytes - self.bytes) - (self.own_high_bytes - self.own_bytes)
        return {
            "context": round(self.own_bytes * quantile(self.spread, level)),
            "libraries": round(libraries_bytes * max(level - 0.5, 0.0) / 0.5),
        }

    def with_outside(self, outside_bytes: int) -> Context:
        """Return the context plus the memory that the job's libraries allocated themselves."""
        low, high = self.low_bytes + outside_bytes, self.high_bytes + outside_bytes
        return replace(
            self, bytes=self.bytes + outside_bytes, low_bytes=low, high_bytes=high,
            outside_bytes=self.outside_bytes + outside_bytes,
        )  # fmt: skip

    def plus(self, low_bytes: int, point_bytes: int, high_bytes: int, *, what: str) -> Context:
        """Return the context plus an assumed part that depends on the job's ranks."""
        low, point, high = self.added
        return replace(
            self, bytes=self.bytes + point_bytes, low_bytes=self.low_bytes + low_bytes,
            high_bytes=self.high_bytes + high_bytes, provenance=f"{self.provenance}; {what} (assumed)", assumed=True,
            added=(low + low_bytes, point + point_bytes, high + high_bytes),
        )  # fmt: skip


def quantile(ascending: Sequence[float], level: float) -> float:
    """Return the residual that a share `level` of new ones stays below, at least 0; 0 up to the median.

    Source: split conformal prediction; the k-th of n exchangeable residuals is above a new one with probability k / (n + 1).
    """
    if level <= 0.5 or not ascending:
        return 0.0
    rank = min(math.ceil(level * (len(ascending) + 1)), len(ascending))
    return max(ascending[rank - 1], 0.0)


@dataclass(frozen=True, slots=True)
class _Size:
    """A context without NCCL: its size, its source, and whether all of it was measured together."""

    mib: Interval
    source: ContextSource
    spread: tuple[float, ...]
    said_by: str
    exact: bool


# Memory added by a library, without workspaces, which PyTorch takes from its own segments.
# cuBLAS and cuDNN, lazily loaded, in MiB per 1024 resident threads of the card. Of the 0.46 that kernels add to a bare context,
# the first kernel takes most (H100: 610 to 614 after one, 599 to 666 after all).
_LAZY_ADDS = {
    "cublas": Interval(0.01, 0.0, 0.3),  # arbitrary: too small to measure; high end as for cuDNN
    "cudnn": Interval(0.05, 0.0, 0.3),  # measured: RTX 4090 pair, V100 with and without convolutions, 2025-2026
}
_EAGER_ADDS = {
    "cublas": Interval(64, 0, 250),  # arbitrary: at most what cuDNN adds
    "cudnn": Interval(250, 0, 250),  # measured: A100, 1429 -> 1679, arXiv 2602.17817, 2024
}
# Two RTX 4090 ranks +100 and +270, A100 +418, H100 +987; vLLM with two ranks +1833 (vllm-project/vllm#10511).
_NCCL = Interval(418, 100, 1833)  # measured: ranks against single processes, 2024-2026
_NONE = Interval(0, 0, 0)  # spec: a library that is not loaded takes nothing
_LAST_EAGER = 11  # spec: lazy loading came with CUDA 11.7 and is on by default in PyTorch built for CUDA 12
_OF_ROWS = 12  # measured: CUDA of the wheels of nearly all sources
_LAST_MEASURED = 13  # measured: H100 with NCCL, eight ranks, torch 2.11: 1494 with cu128, 1496 with cu130; RTX 3060 104
_UNMEASURED_WIDER = 1.25  # arbitrary: widening of both ends for a CUDA without measurements


def context_bytes(
    device: Device | str, cuda_major: int, libraries: Collection[str], *, torch: str | None = None, kernels: bool = True
) -> Context:
    """Return the memory of a process on the card outside PyTorch's segments.

    Args:
        device: The card, or its key.
        cuda_major: Major version of the CUDA for which PyTorch was built, > 0.
        libraries: The libraries that the process uses, some of `LIBRARIES`.
        torch: Version of torch in the process; None: unknown, so every row counts as another stack.
        kernels: Whether the process launches kernels of torch; a process with cuBLAS or cuDNN always does.
    Returns:
        Bytes with an interval and a spread. The size never shrinks when a library is added.
    Raises:
        UsageError: The card, CUDA version or library is unknown, or the site file is wrong.
    """
    card = device if isinstance(device, Device) else find_device(device)
    wanted = frozenset(libraries)
    if unknown := sorted(wanted - set(LIBRARIES)):
        raise UsageError(f"Library '{unknown[0]}' has no context size: give some of {', '.join(LIBRARIES)}.")
    if cuda_major <= 0:
        raise UsageError(f"CUDA {cuda_major} does not exist: give the major version, for example 12.")
    loaded = wanted - {"nccl"}
    size = (
        _eager(card, loaded, torch)
        if cuda_major <= _LAST_EAGER
        else _lazy(card, loaded, torch, kernels=kernels or bool(loaded))
    )
    interval, spread, exact, said_by = size.mib, size.spread, size.exact, size.said_by
    if size.source not in (ContextSource.SITE, ContextSource.MEASURED) and cuda_major not in (_LAST_EAGER, _OF_ROWS):
        exact, said_by = False, f"{said_by}, but for another CUDA version"
        interval, spread = _of_another_cuda(size, 1 if _LAST_EAGER < cuda_major <= _LAST_MEASURED else _UNMEASURED_WIDER)
    whole = interval + (_NCCL if "nccl" in wanted else _NONE)
    exact = exact and "nccl" not in wanted
    measured_by = "measured on your site" if size.source is ContextSource.SITE else "measured by others"
    return Context(
        bytes=round(whole.mib * MIB),
        low_bytes=round(max(0.0, whole.low_mib) * MIB),
        high_bytes=round(whole.high_mib * MIB),
        provenance=f"{said_by} ({measured_by if exact else 'assumed'})",
        assumed=not exact,
        source=size.source,
        own_bytes=round(interval.mib * MIB),
        own_high_bytes=round(interval.high_mib * MIB),
        spread=spread,
    )


def _of_another_cuda(size: _Size, wider: float) -> tuple[Interval, tuple[float, ...]]:
    """Return the size and the spread for a CUDA other than the row's, with the ends of any stack."""
    spread = tuple((1 + one) * wider - 1 if one >= 0 else (1 + one) / wider - 1 for one in size.spread)
    mib, low, high = size.mib.mib, size.mib.low_mib / wider, size.mib.high_mib * wider
    return Interval(mib, min(low, mib * (1 + spread[0])), max(high, mib * (1 + spread[-1]))), spread


def _eager(card: Device, wanted: frozenset[str], torch: str | None) -> _Size:
    """Return the size if all kernels of a library are loaded with it; its range serves as the spread."""
    of_site = [row for row in _of_site(card, eager=True) if _is_torch(row, minor_of(torch))]
    rows = of_site or [row for row in EAGER if card.key in row.gpus]
    row = _most_of(rows, wanted) if rows else EAGER_ELSEWHERE
    size = _with_libraries(row.size, row.libraries, wanted, _EAGER_ADDS)
    exact = bool(rows) and row.libraries == wanted
    source = ContextSource.SITE if of_site else ContextSource.OTHER_STACK if rows else ContextSource.INTERPOLATED
    return _Size(size, source, (size.high_mib / size.mib - 1,), _words(row, exact=exact), exact)


def _lazy(
    card: Device, wanted: frozenset[str], torch: str | None, *, kernels: bool, rows: tuple[ContextRow, ...] = LAZY
) -> _Size:
    """Return the size if kernels are loaded at first use.

    The card's own row has priority: the site's before others', and one of this torch before one of another torch. Kernels on a
    card measured without them, and cards without a row, follow from the other cards.
    """
    adds = {library: size.times(kilothreads(card)) for library, size in _LAZY_ADDS.items()}
    of_site, of_table = _of_site(card, eager=False), [row for row in rows if card.key in row.gpus]
    minor = minor_of(torch)
    found = None
    for candidates, is_this_torch in ((of_site, True), (of_table, True), (of_site, False), (of_table, False)):
        of_card = [
            row for row in candidates
            if kernels == (row.libraries != BARE) and (not is_this_torch or _is_torch(row, minor))
        ]  # fmt: skip
        if of_card:
            found = _most_of(of_card, wanted)
            source = (
                ContextSource.OTHER_STACK
                if not is_this_torch
                else ContextSource.SITE
                if found in of_site
                else ContextSource.MEASURED
            )
            break
    if found is not None:
        exact = found.libraries == wanted
        size = _with_libraries(found.size, found.libraries, wanted, adds)
        spread = _spread(source, kernels=kernels)
        if found in of_site and found.size.high_mib > found.size.mib:  # the site gives its own range
            spread = (found.size.high_mib / found.size.mib - 1,)
        return _Size(size, source, spread, _words(found, exact=exact), exact)
    spread = _spread(ContextSource.INTERPOLATED, kernels=kernels)
    mib, least = bare_mib(kilothreads(card), rows), 0.0
    said_by = "extrapolated from other cards' bare contexts"
    if kernels:
        bare = _lazy(card, BARE, torch, kernels=False, rows=rows)
        mib, least = bare.mib.mib + kernels_mib(kilothreads(card), rows), bare.mib.low_mib
        said_by = f"{bare.said_by}, plus kernels measured on other cards"
    size = Interval(mib, max(mib * (1 + spread[0]), least), mib * (1 + spread[-1]))
    if kernels:
        size = _with_libraries(size, frozenset(_LAZY_ADDS), wanted, adds)
    return _Size(size, ContextSource.INTERPOLATED, spread, said_by, False)


def _of_site(card: Device, *, eager: bool) -> list[ContextRow]:
    """Return the site's own rows of a card that match the way of loading kernels."""
    site = site_file()
    return [
        row for row in (site.contexts if site is not None else ())
        if any(squeezed(name) in card.names for name in row.gpus) and (not row.cuda or eager == (row.cuda <= _LAST_EAGER))
    ]  # fmt: skip


def _is_torch(row: ContextRow, minor: str) -> bool:
    return minor in map(minor_of, row.torch)


def minor_of(torch: str | None) -> str:
    """Return the minor release of a version of torch, 2.11 for 2.11.0+cu130; "" for None."""
    return ".".join((torch or "").partition("+")[0].split(".")[:2])


def _spread(source: ContextSource, *, kernels: bool) -> tuple[float, ...]:
    """Return the spread of a class of contexts; a site's measurement has the spread of others' measurements."""
    known = _SPREADS["kernels" if kernels else "bare"]
    return tuple(known.get((ContextSource.MEASURED if source is ContextSource.SITE else source).name, known["OTHER_STACK"]))


def _most_of(rows: Sequence[ContextRow], wanted: frozenset[str]) -> ContextRow:
    """Return the row with most of the wanted libraries and no others, or else the first row."""
    within = [row for row in rows if row.libraries <= wanted]
    return max(within, key=lambda row: len(row.libraries)) if within else rows[0]


def _words(row: ContextRow, *, exact: bool) -> str:
    return row.source if exact else f"derived from {row.source}"


def _with_libraries(size: Interval, has: frozenset[str], wanted: frozenset[str], adds: Mapping[str, Interval]) -> Interval:
    """Return the size with missing libraries added and unwanted ones subtracted."""
    for library, more in adds.items():
        if library in wanted - has:
            size += more
        elif library in has - wanted:
            size -= more
    return size
