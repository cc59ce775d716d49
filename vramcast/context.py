"""What a process takes from the card besides PyTorch's segments: the CUDA context and what libraries load into it.

    process = reserved (the simulator's) + context (this table) [+ CUDA graphs, custom kernels: not modelled]

These are constants published or fitted by others, or computed here from numbers they published; none was measured by
this project. The main source is PyTorch's own out-of-memory message, which since 2.1 names what NVML charges to the
process, what is allocated and what is reserved beyond that. The difference is what this table holds:

    context = "this process has X in use" - "Y is allocated by PyTorch" - "Z is reserved by PyTorch but unallocated"

Two decimals of a GiB each, so one message is good to about 15 MiB; a row says the median of several, and their range.

The messages say neither the CUDA version (PyTorch's wheels of those years are built for CUDA 12) nor which libraries
were loaded (inferred: a job which ran a GEMM has cuBLAS, one which ran a convolution cuDNN).

What decides the size is how kernels are loaded. With CUDA 11 all of a library's kernels are loaded with the library
(1.3 to 1.7 GiB); later each is loaded when first used (PyTorch asks for it since 1.13). What is left grows with the
number of threads which the card can hold at once: 2.3 to 2.9 KiB for each, from a T4 to a B200, with cuBLAS and cuDNN.
That is the rule for cards without a row. A site which knows its own stack should use that number instead.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass, replace

from vramcast import devices
from vramcast.devices import DEVICES, Device
from vramcast.errors import UsageError
from vramcast.units import MIB

LIBRARIES = ("cublas", "cudnn", "nccl")


@dataclass(frozen=True, slots=True)
class Context:
    """Bytes outside PyTorch's segments.

    Attributes:
        bytes: The point.
        low_bytes: Lower end of what is plausible.
        high_bytes: Upper end; a bound on the process peak must use this one.
        provenance: Where the number comes from, for the report.
        assumed: True when this card, CUDA and set of libraries was not measured together.
        added: Low end, point and high end of what of it depends on the job's ranks: NCCL, contexts of others.
        outside_bytes: What of it libraries of the job took from the card themselves, past PyTorch's allocator.
    """

    bytes: int
    low_bytes: int
    high_bytes: int
    provenance: str
    assumed: bool
    outside_bytes: int = 0
    added: tuple[int, int, int] = (0, 0, 0)

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


@dataclass(frozen=True, slots=True)
class _Interval:
    mib: float
    low_mib: float
    high_mib: float

    def __add__(self, other: _Interval) -> _Interval:
        return _Interval(self.mib + other.mib, self.low_mib + other.low_mib, self.high_mib + other.high_mib)

    def __sub__(self, other: _Interval) -> _Interval:
        return _Interval(self.mib - other.mib, self.low_mib - other.high_mib, self.high_mib - other.low_mib)

    def times(self, factor: float) -> _Interval:
        return _Interval(self.mib * factor, self.low_mib * factor, self.high_mib * factor)


@dataclass(frozen=True, slots=True)
class _Row:
    """A measurement: the cards it holds for, the libraries the process had used, MiB, source."""

    keys: tuple[str, ...]
    libraries: frozenset[str]
    size: _Interval
    source: str


_NONE: frozenset[str] = frozenset()
_BLAS = frozenset({"cublas"})
_BLAS_DNN = frozenset({"cublas", "cudnn"})
_V100 = ("v100-16gb", "v100-32gb")
_A100 = ("a100-40gb", "a100-80gb")
_H100 = ("h100", "h100-pcie", "h100-nvl")
_OOM = "PyTorch out-of-memory messages in public logs"

# Kernels loaded with their library: CUDA 11 and older. The range of the V100 is +-10 % (one number, arbitrary).
_EAGER = (
    _Row(_V100, _NONE, _Interval(1343, 1209, 1477), "HF performance docs"),  # measured: V100, CUDA 11.2, HF docs, 2021
    # The two A100 rows are a DGX Station of 2024 whose CUDA version is not published; their size puts them here, which
    # is a guess. Fitted on 5,947 and 1,590 jobs; the range is the largest miss of the first.
    _Row(_A100, _BLAS, _Interval(1429, 1361, 1497), "fitted on GPUMemNet MLPs"),  # measured: arXiv 2602.17817, 2024
    _Row(_A100, _BLAS_DNN, _Interval(1679, 1611, 1747), "fitted on GPUMemNet CNNs"),  # measured: arXiv 2602.17817, 2024
)
_EAGER_ELSEWHERE = _Row(
    (),
    _NONE,
    # measured: V100 as above; low end: 616 MiB with CUDA_MODULE_LOADING=DEFAULT, https://github.com/pytorch/pytorch/pull/86509
    _Interval(1343, 616, 1679),
    "other cards with CUDA 11",
)

# Kernels loaded when first used: CUDA 12, PyTorch >= 2.1. Left out: jobs with CUDA graphs or kernels of their own.
# The range is that of the messages, +-15 MiB for their two decimals; +-10 % where there is one message (arbitrary).
_LAZY = (
    _Row(_V100, _BLAS_DNN, _Interval(380, 364, 404), _OOM),  # measured: 379 379 383 389; before any library 308 (2026)
    _Row(("t4",), _BLAS_DNN, _Interval(114, 85, 148), _OOM),  # measured: 100 (hpcaitech/Open-Sora#697) 111 114 120 133
    _Row(("a10",), _BLAS_DNN, _Interval(307, 166, 401), _OOM),  # measured: 181 307 386, on A10 and A10G
    _Row(_A100, _BLAS_DNN, _Interval(524, 474, 546), "itu-rad/CARMA, A100"),  # measured: 524 (2025); 489 513 522 531
    _Row(("l4",), _NONE, _Interval(211, 190, 232), _OOM),  # measured: 211, while loading weights
    _Row(("l40s",), _BLAS, _Interval(505, 480, 529), _OOM),  # measured: 495 514
    # H100: 510 before any library (vllm-project/vllm#35463, the card told by its 79.19 GiB). SXM or PCIe is not said.
    _Row(_H100, _BLAS_DNN, _Interval(601, 584, 681), _OOM),  # measured: 599 601 666
    _Row(("h200",), _NONE, _Interval(520, 498, 542), _OOM),  # measured: 513; 527 CuPy after its first kernel
    _Row(("b200",), _NONE, _Interval(712, 641, 783), _OOM),  # measured: 712, stas00/ml-engineering debug/pytorch.md
    _Row(("rtx3060",), _NONE, _Interval(98, 68, 138), _OOM),  # measured: 83 89 106 123, loading diffusion models
    _Row(("rtx3090",), _BLAS, _Interval(354, 292, 435), _OOM),  # measured: 307 354 420
    # RTX 4090: 461 461; flux-webui#11 473, T2ITrainer#37 479, 3DTopia/Phidias-Diffusion#8 504
    _Row(("rtx4090",), _BLAS_DNN, _Interval(473, 446, 519), _OOM),  # measured: 461 461 473 479 504
)

# What a library adds. Their workspaces are not here: PyTorch takes those from its own segments.
# cuBLAS and cuDNN, lazily loaded, in MiB for each 1024 threads which the card can hold (the pairs known fit a share of
# the card better than a constant): V100 308 -> 380 and H100 510 -> 601 for both; RTX 4090 461 -> 473...504 for cuDNN.
_LAZY_ADDS = {
    "cublas": _Interval(0.35, 0.0, 0.5),  # measured: V100 and H100 pairs less cuDNN's share, 2025-2026
    "cudnn": _Interval(0.05, 0.0, 0.3),  # measured: RTX 4090 pair, V100 with and without convolutions, 2025-2026
}
_EAGER_ADDS = {
    "cublas": _Interval(64, 0, 250),  # arbitrary: at most what cuDNN adds
    "cudnn": _Interval(250, 0, 250),  # measured: A100, 1429 -> 1679, arXiv 2602.17817, 2024
}
# Two RTX 4090 ranks +100 and +270, A100 +418, H100 +987; vLLM with two ranks +1833 (vllm-project/vllm#10511).
_NCCL = _Interval(418, 100, 1833)  # measured: ranks against single processes, 2024-2026
_LAST_EAGER = 11  # spec: lazy loading came with CUDA 11.7 and is on by default in PyTorch built for CUDA 12
_LAST_MEASURED = 12  # measured: none of the sources above says a newer one
_UNMEASURED_WIDER = 1.25  # arbitrary: for a CUDA without measurements, both ends move out by a quarter


def context_bytes(device: Device | str, cuda_major: int, libraries: Collection[str]) -> Context:
    """Return what a process takes from the card outside PyTorch's segments.

    Args:
        device: The card, or its key.
        cuda_major: Major version of the CUDA which PyTorch was built for, > 0.
        libraries: Which of `LIBRARIES` the process uses.
    Returns:
        Bytes with an interval. It never shrinks when a library is added.
    Raises:
        UsageError: Unknown card, CUDA version or library.
    """
    card = device if isinstance(device, Device) else devices.device(device)
    wanted = frozenset(libraries)
    if unknown := sorted(wanted - set(LIBRARIES)):
        raise UsageError(f"Library '{unknown[0]}' has no context size: give some of {', '.join(LIBRARIES)}.")
    if cuda_major <= 0:
        raise UsageError(f"CUDA {cuda_major} does not exist: give the major version, for example 12.")
    eager = cuda_major <= _LAST_EAGER
    row = _row(card, wanted, eager)
    size = _with_libraries(row, wanted, _adds(card, eager))
    exact = card.key in row.keys and row.libraries == wanted
    source = row.source if exact else f"derived from {row.source}"
    if cuda_major not in (_LAST_EAGER, _LAST_MEASURED):
        size = _Interval(size.mib, size.low_mib / _UNMEASURED_WIDER, size.high_mib * _UNMEASURED_WIDER)
        exact, source = False, f"{source}, another CUDA version"
    return Context(
        bytes=round(size.mib * MIB),
        low_bytes=round(max(0.0, size.low_mib) * MIB),
        high_bytes=round(size.high_mib * MIB),
        provenance=f"{source} ({'assumed' if not exact else 'measured by others'})",
        assumed=not exact,
    )


def _row(card: Device, wanted: frozenset[str], eager: bool) -> _Row:
    """Return this card's row with most of the wanted libraries and none besides, or the rule for other cards."""
    rows = [row for row in (_EAGER if eager else _LAZY) if card.key in row.keys]
    if not rows:
        return _EAGER_ELSEWHERE if eager else _by_threads(card)
    within = [row for row in rows if row.libraries <= wanted]
    return max(within, key=lambda row: len(row.libraries)) if within else rows[0]


def _adds(card: Device, eager: bool) -> dict[str, _Interval]:
    """Return what each library adds on this card, MiB."""
    if eager:
        return _EAGER_ADDS | {"nccl": _NCCL}
    return {library: size.times(_kilothreads(card)) for library, size in _LAZY_ADDS.items()} | {"nccl": _NCCL}


def _with_libraries(row: _Row, wanted: frozenset[str], adds: dict[str, _Interval]) -> _Interval:
    """Return the row's size with the libraries added which it lacks and those taken out which are not wanted."""
    size = row.size
    for library in LIBRARIES:
        if library in wanted - row.libraries:
            size += adds[library]
        elif library in row.libraries - wanted:
            size -= adds[library]
    return size


def _kilothreads(card: Device) -> float:
    """Return how many threads the card can hold at once, in units of 1024."""
    return card.sm_count * card.threads_per_sm / 1024


def _by_threads(card: Device) -> _Row:
    """Return the rule for a card without a row: the measured cards' bare context for each thread they can hold."""
    measured = [(row, DEVICES[row.keys[0]]) for row in _LAZY]
    shares = [_with_libraries(row, _NONE, _adds(of, False)).times(1 / _kilothreads(of)) for row, of in measured]
    share = _Interval(
        statistics.median(share.mib for share in shares),
        min(share.low_mib for share in shares),
        max(share.high_mib for share in shares),
    )
    return _Row((), _NONE, share.times(_kilothreads(card)), "the other cards' context for each resident thread")
