"""What a process takes from the card besides PyTorch's segments: the CUDA context and what libraries load into it.

    process = reserved (the simulator's) + context (this table) [+ CUDA graphs, custom kernels: not modelled]

Unless the site measured its own (`vramcast doctor --measure-context`), these are constants published or fitted by others, or
computed here from numbers they published (vramcast/hardware/cards.toml). For contexts after kernels the main source is
PyTorch's own out-of-memory message, which since 2.1 names what NVML charges to the process, what is allocated and what is
reserved beyond it:

    context = "this process has X in use" - "Y is allocated by PyTorch" - "Z is reserved by PyTorch but unallocated"

Two decimals of a GiB each, so one message is good to about 15 MiB; a row says the median of several, and their range.

The messages say neither the CUDA version (PyTorch's wheels of those years are built for CUDA 12) nor which libraries
were loaded (inferred: a job which ran a GEMM has cuBLAS, one which ran a convolution cuDNN).

What decides the size is how kernels are loaded. With CUDA 11 all of a library's kernels are loaded with the library
(1.3 to 1.7 GiB); later each is loaded when first used (PyTorch asks for it since 1.13). What is left grows with the
number of threads which the card can hold at once: that is the rule for cards without a row.

How far a context may lie off is the spread of what was measured, by how much of it was measured on the card (`Source`).
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

from vramcast.core.errors import UsageError
from vramcast.core.units import MIB
from vramcast.hardware.card_file import ContextRow, Interval
from vramcast.hardware.cards import DEVICES, built_in, site_file
from vramcast.hardware.cards import device as find_device
from vramcast.hardware.device import Device, squeezed

LIBRARIES = ("cublas", "cudnn", "nccl")
BARE: Final[frozenset[str]] = frozenset()
# The contexts that others measured, with kernels loaded with their library: CUDA 11 and older; and loaded when first used:
# CUDA 12 and 13.
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
    """Return how many threads a row's card can hold at once, in units of 1024."""
    return kilothreads(DEVICES[row.gpus[0]])


def kilothreads(card: Device) -> float:
    """Return how many threads the card can hold at once, in units of 1024."""
    return card.sm_count * card.threads_per_sm / 1024


@functools.lru_cache(maxsize=512)
def bare_mib(threads_1024: float, rows: tuple[ContextRow, ...] = LAZY) -> float:
    """Return the bare context of a card without a row: as a card with as many threads, else by the rule.

    The rule is a constant and a share for each thread which the card can hold, fitted to the bare rows by least squares of
    relative errors: size / threads is linear in 1 / threads.
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
    """Return what kernels add to the bare context of a card without a row: as on a card with as many threads, else by the rule.

    The rule is the median of what they add for each thread.
    """
    bare = {row.gpus[0]: row.size.mib for row in rows if row.libraries == BARE}
    after = [row for row in rows if row.libraries != BARE]
    alike = [row for row in after if threads_of(row) == threads_1024]
    shares = [
        (row.size.mib - bare.get(row.gpus[0], bare_mib(threads_of(row), rows))) / threads_of(row) for row in alike or after
    ]
    return statistics.median(shares) * threads_1024


class Source(Enum):
    """Where a context's size was measured; each class has its own spread."""

    SITE = "the site's own measurement"
    MEASURED = "this card with the same minor release of torch"
    OTHER_STACK = "this card with another torch, driver or CUDA"
    INTERPOLATED = "other cards, by the threads which a card can hold"


# What contexts came to relative to what was assumed for them, by whether kernels ran and by how much was measured.
_SPREADS: Final[dict[str, dict[str, list[float]]]] = tomllib.loads(
    Path(__file__).with_name("context_spreads.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True, slots=True)
class Context:
    """Bytes outside PyTorch's segments.

    Attributes:
        bytes: The point.
        low_bytes: Lower end of what is plausible.
        high_bytes: Upper end.
        provenance: Where the number comes from, for the report.
        assumed: True when this card, CUDA and set of libraries was not measured together.
        outside_bytes: What of it libraries of the job took from the card themselves, past PyTorch's allocator.
        added: Low end, point and high end of what of it depends on the job's ranks: NCCL, contexts of others.
        source: Where the context itself, without NCCL and others, was measured.
        own_bytes, own_high_bytes: Of the context itself the point and the upper end.
        spread: What such contexts came to relative to what was assumed for them, less 1; ascending.
    """

    bytes: int
    low_bytes: int
    high_bytes: int
    provenance: str
    assumed: bool
    outside_bytes: int = 0
    added: tuple[int, int, int] = (0, 0, 0)
    source: Source = Source.INTERPOLATED
    own_bytes: int = 0
    own_high_bytes: int = 0
    spread: tuple[float, ...] = field(default=(), repr=False)

    def above_bytes(self, level: float) -> int:
        """Return how far above the point it may lie, so that a share `level` of such contexts stays below; 0 up to 0.5.

        Limits: of n measurements none says more than n / (n + 1); a higher level has the largest of them.
        """
        return sum(self.parts_above(level).values())

    def parts_above(self, level: float) -> dict[str, int]:
        """Return what `above_bytes` is of the context itself (`context`), and of NCCL and other ranks' contexts (`libraries`).

        The context has a distribution. The libraries have two ends and a point: their share of the way to the upper end grows
        with the level. Both at once: the sum is on the safe side.
        """
        libraries_bytes = (self.high_bytes - self.bytes) - (self.own_high_bytes - self.own_bytes)
        return {
            "context": round(self.own_bytes * quantile(self.spread, level)),
            "libraries": round(libraries_bytes * max(level - 0.5, 0.0) / 0.5),
        }

    def with_outside(self, outside_bytes: int) -> Context:
        """Return it with what libraries of the job took themselves."""
        low, high = self.low_bytes + outside_bytes, self.high_bytes + outside_bytes
        return replace(
            self, bytes=self.bytes + outside_bytes, low_bytes=low, high_bytes=high,
            outside_bytes=self.outside_bytes + outside_bytes,
        )  # fmt: skip

    def plus(self, low_bytes: int, point_bytes: int, high_bytes: int, *, what: str) -> Context:
        """Return it with something else which is assumed, and depends on the job's ranks."""
        low, point, high = self.added
        return replace(
            self, bytes=self.bytes + point_bytes, low_bytes=self.low_bytes + low_bytes,
            high_bytes=self.high_bytes + high_bytes, provenance=f"{self.provenance}; {what} (assumed)", assumed=True,
            added=(low + low_bytes, point + point_bytes, high + high_bytes),
        )  # fmt: skip


def quantile(ascending: Sequence[float], level: float) -> float:
    """Return the residual which a share `level` of new ones stays below, never less than 0; nothing up to the median.

    Source: split conformal prediction; of n exchangeable residuals the k-th is above a new one with probability k / (n + 1).
    """
    if level <= 0.5 or not ascending:
        return 0.0
    rank = min(math.ceil(level * (len(ascending) + 1)), len(ascending))
    return max(ascending[rank - 1], 0.0)


@dataclass(frozen=True, slots=True)
class _Size:
    """A context without NCCL: its size, who says so, and whether all of it was measured together."""

    mib: Interval
    source: Source
    spread: tuple[float, ...]
    said_by: str
    exact: bool


# What a library adds. Their workspaces are not here: PyTorch takes those from its own segments.
# cuBLAS and cuDNN, lazily loaded, in MiB for each 1024 threads which the card can hold. Of the 0.46 which kernels add to a bare
# context, the first kernel takes most (H100: 610 to 614 after one, 599 to 666 after all).
_LAZY_ADDS = {
    "cublas": Interval(0.01, 0.0, 0.3),  # arbitrary: less than can be told; high end as cuDNN's
    "cudnn": Interval(0.05, 0.0, 0.3),  # measured: RTX 4090 pair, V100 with and without convolutions, 2025-2026
}
_EAGER_ADDS = {
    "cublas": Interval(64, 0, 250),  # arbitrary: at most what cuDNN adds
    "cudnn": Interval(250, 0, 250),  # measured: A100, 1429 -> 1679, arXiv 2602.17817, 2024
}
# Two RTX 4090 ranks +100 and +270, A100 +418, H100 +987; vLLM with two ranks +1833 (vllm-project/vllm#10511).
_NCCL = Interval(418, 100, 1833)  # measured: ranks against single processes, 2024-2026
_NONE = Interval(0, 0, 0)  # spec: what is not loaded takes nothing
_LAST_EAGER = 11  # spec: lazy loading came with CUDA 11.7 and is on by default in PyTorch built for CUDA 12
_OF_ROWS = 12  # measured: which the wheels of nearly all sources are built for
_LAST_MEASURED = 13  # measured: H100 with NCCL, eight ranks, torch 2.11: 1494 with cu128, 1496 with cu130; RTX 3060 104
_UNMEASURED_WIDER = 1.25  # arbitrary: for a CUDA without measurements, both ends move out by a quarter


def context_bytes(
    device: Device | str, cuda_major: int, libraries: Collection[str], *, torch: str | None = None, kernels: bool = True
) -> Context:
    """Return what a process takes from the card outside PyTorch's segments.

    Args:
        device: The card, or its key.
        cuda_major: Major version of the CUDA which PyTorch was built for, > 0.
        libraries: Which of `LIBRARIES` the process uses.
        torch: Version of torch in the process; None: not known, so that any row is of another stack.
        kernels: Whether it launches kernels of torch; one which uses cuBLAS or cuDNN does.
    Returns:
        Bytes with an interval and a spread. It never shrinks when a library is added.
    Raises:
        UsageError: Unknown card, CUDA version or library, or a wrong site file.
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
    if size.source not in (Source.SITE, Source.MEASURED) and cuda_major not in (_LAST_EAGER, _OF_ROWS):
        exact, said_by = False, f"{said_by}, another CUDA version"
        interval, spread = _of_another_cuda(size, 1 if _LAST_EAGER < cuda_major <= _LAST_MEASURED else _UNMEASURED_WIDER)
    whole = interval + (_NCCL if "nccl" in wanted else _NONE)
    exact = exact and "nccl" not in wanted
    measured_by = "measured on your site" if size.source is Source.SITE else "measured by others"
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
    """Return the size and the spread of a stack whose CUDA is not the row's: its ends lie where any stack's may."""
    spread = tuple((1 + one) * wider - 1 if one >= 0 else (1 + one) / wider - 1 for one in size.spread)
    mib, low, high = size.mib.mib, size.mib.low_mib / wider, size.mib.high_mib * wider
    return Interval(mib, min(low, mib * (1 + spread[0])), max(high, mib * (1 + spread[-1]))), spread


def _eager(card: Device, wanted: frozenset[str], torch: str | None) -> _Size:
    """Return the size where all kernels of a library are loaded with it: one number, so its range is the spread."""
    of_site = [row for row in _of_site(card, eager=True) if _is_torch(row, minor_of(torch))]
    rows = of_site or [row for row in EAGER if card.key in row.gpus]
    row = _most_of(rows, wanted) if rows else EAGER_ELSEWHERE
    size = _with_libraries(row.size, row.libraries, wanted, _EAGER_ADDS)
    exact = bool(rows) and row.libraries == wanted
    source = Source.SITE if of_site else Source.OTHER_STACK if rows else Source.INTERPOLATED
    return _Size(size, source, (size.high_mib / size.mib - 1,), _words(row, exact=exact), exact)


def _lazy(
    card: Device, wanted: frozenset[str], torch: str | None, *, kernels: bool, rows: tuple[ContextRow, ...] = LAZY
) -> _Size:
    """Return the size where kernels are loaded when first used.

    The card's own row decides: the site's before others', one of this torch before another's. What kernels add to a card which
    was measured without them, and a card without a row, follow from the other cards.
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
            source = Source.OTHER_STACK if not is_this_torch else Source.SITE if found in of_site else Source.MEASURED
            break
    if found is not None:
        exact = found.libraries == wanted
        size = _with_libraries(found.size, found.libraries, wanted, adds)
        spread = _spread(source, kernels=kernels)
        if found in of_site and found.size.high_mib > found.size.mib:  # the site says itself how far it may lie off
            spread = (found.size.high_mib / found.size.mib - 1,)
        return _Size(size, source, spread, _words(found, exact=exact), exact)
    spread = _spread(Source.INTERPOLATED, kernels=kernels)
    mib, least = bare_mib(kilothreads(card), rows), 0.0
    said_by = "the other cards' bare contexts by the threads which a card can hold"
    if kernels:
        bare = _lazy(card, BARE, torch, kernels=False, rows=rows)
        mib, least = bare.mib.mib + kernels_mib(kilothreads(card), rows), bare.mib.low_mib
        said_by = f"{bare.said_by}, and what kernels add on other cards"
    size = Interval(mib, max(mib * (1 + spread[0]), least), mib * (1 + spread[-1]))
    if kernels:
        size = _with_libraries(size, frozenset(_LAZY_ADDS), wanted, adds)
    return _Size(size, Source.INTERPOLATED, spread, said_by, False)


def _of_site(card: Device, *, eager: bool) -> list[ContextRow]:
    """Return the site's own rows of a card, less those that are for the other way of loading kernels."""
    site = site_file()
    return [
        row for row in (site.contexts if site is not None else ())
        if any(squeezed(name) in card.names for name in row.gpus) and (not row.cuda or eager == (row.cuda <= _LAST_EAGER))
    ]  # fmt: skip


def _is_torch(row: ContextRow, minor: str) -> bool:
    return minor in map(minor_of, row.torch)


def minor_of(torch: str | None) -> str:
    """Return the minor release of a version of torch: 2.11 of 2.11.0+cu130; "" of none."""
    return ".".join((torch or "").partition("+")[0].split(".")[:2])


def _spread(source: Source, *, kernels: bool) -> tuple[float, ...]:
    """Return how far contexts of this class lie off; one that a site measured is no better known than others' own."""
    known = _SPREADS["kernels" if kernels else "bare"]
    return tuple(known.get((Source.MEASURED if source is Source.SITE else source).name, known["OTHER_STACK"]))


def _most_of(rows: Sequence[ContextRow], wanted: frozenset[str]) -> ContextRow:
    """Return the row with most of the wanted libraries and none besides, else the first."""
    within = [row for row in rows if row.libraries <= wanted]
    return max(within, key=lambda row: len(row.libraries)) if within else rows[0]


def _words(row: ContextRow, *, exact: bool) -> str:
    return row.source if exact else f"derived from {row.source}"


def _with_libraries(size: Interval, has: frozenset[str], wanted: frozenset[str], adds: Mapping[str, Interval]) -> Interval:
    """Return the size with the libraries added which it lacks and those taken out which are not wanted."""
    for library, more in adds.items():
        if library in wanted - has:
            size += more
        elif library in has - wanted:
            size -= more
    return size
