"""Memory that NCCL takes for a process's communicators outside PyTorch's allocator, and the context including it.

This project measured none of it. The table has modes of nvidia-smi's readings at the start of public training logs, by kind of
card, release of torch (its wheel includes NCCL) and ranks, minus such a card's context after kernels: the process had made
one communicator and passed one barrier, which launches a kernel (if ranks had launched one before on GPU 0, the context that
stays there is no larger). `python -m benchmarks.hardware.process_peaks` compares the table with the logs. NCCL's own rule is
unknown: its memory grows with channels and peers, and cards joined by a switch that reduces in the network (NVLink SHARP:
Hopper and later, SXM) took gigabytes before NCCL 2.26. The sizes of further communicators and of point-to-point calls come
from a few reports. All values are assumptions, and the bound includes their range.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from vramcast.core.brief import brief
from vramcast.core.units import MIB
from vramcast.estimates.bounds.public import RESIDUALS
from vramcast.hardware.card_file import Interval
from vramcast.hardware.context import LIBRARIES, Context, context_bytes
from vramcast.hardware.device import Device
from vramcast.tracer.format.nccl_calls import Calls, calls_in
from vramcast.tracer.format.rank_facts import processes_beside
from vramcast.tracer.format.trace import RANKS, Trace

# Cards joined by a switch that reduces in the network.
_SWITCHED: Final = frozenset({"h100", "h200", "b200"})
# Own process minus a context after one kernel (614), 8 ranks. Two of the eight have 240 less; two alone took 968 on torch 2.6.
# By the NCCL in torch's wheels: releases before this minor version of torch 2.
_ERAS: Final = (
    (5, Interval(3758, 968, 3828)),  # measured: torch 2.4, H100, 4372-4374 in 88 of 128 processes; 2024-2026
    (7, Interval(2832, 968, 2858)),  # measured: torch 2.5 and 2.6, H100 and H200, 3442-3448 in 59 of 72; 2024-2026
    # 880-902 with 8 ranks, 844 with 4, 826-878 with 2; two stacks of fifty 1512 and 1718
    (float("inf"), Interval(896, 796, 1198)),  # measured: torch 2.7 to 2.11, H100 and H200, above 5000 processes; 2025-2026
)
# A100 PCIe 2 ranks 98, 4 ranks 134; A100 SXM 8 ranks 127; A40 112 and 438; RTX A6000 200 and 96; RTX 5090 182; RTX 5080 169;
# L40S 137; RTX 3090 55; A10G 107; Quadro RTX 8000 117; H100 NVL 376; H100 PCIe 428.
_JOINED: Final = Interval(130, 55, 440)  # measured: own process minus a context after kernels, torch 2.5 to 2.11, 2025-2026
# A100 422 (298 with torch 2.5), A40 442, RTX 3080 450, RTX 4090 429, RTX 5090 512-526, B200 548, H200 554, H100 562 (312 with
# torch 2.4, 416 with 2.6). NVIDIA/nccl#2363: a buffer of 512 for a single rank.
_ALONE: Final = Interval(450, 298, 570)  # measured: one rank, own process minus a context after kernels, 2024-2026
_FURTHER_PAIR: Final = Interval(544, 0, 1800)  # measured: 4 x A100, NVIDIA/nccl#964, 2023; high end NVIDIA/nccl#864
_FURTHER: Final = Interval(688, 0, 1800)  # measured: 4 x A100, NVIDIA/nccl#964, 2023; 0: resources shared with the first
_FURTHER_ALONE: Final = Interval(0, 0, 512)  # measured: 512 at most, NVIDIA/nccl#2363, 2026
_PEER_MIB: Final = 447  # measured: 3128 for 7 peers at the first all_to_all_single, 8 x H100, NVIDIA/nccl#1685, 2025
_PEER_CALLS: Final = frozenset({"send", "recv", "all_to_all", "gather", "scatter"})
_PER_MACHINE: Final = 8  # arbitrary: cards of a machine; more distant ones are reached through shared buffers


@brief
@dataclass(frozen=True, slots=True)
class Communicator:
    """One NCCL communicator; sizes are in bytes.

    Attributes:
        ranks: Number of its ranks.
        calls: Number of calls by kind. A communicator without calls takes no memory: NCCL connects at the first call.
        bytes_assumed: The assumed size on the card.
        low_bytes, high_bytes: The plausible range; a bound uses the upper end.
    """

    ranks: int
    calls: dict[str, int]
    bytes_assumed: int
    low_bytes: int
    high_bytes: int

    def __str__(self) -> str:
        return f"{self.ranks} ranks: " + (", ".join(f"{kind} {n}" for kind, n in self.calls.items()) or "not used")


def sizes_of(calls: Sequence[Calls], card: Device, torch: str | None) -> tuple[Communicator, ...]:
    """Return a process's communicators with NCCL's assumed memory for each.

    Args:
        calls: Calls on each communicator, in order of creation.
        card: The card that holds the memory.
        torch: Version of torch on the card's machine; None: a current one.
    """
    found = []
    is_first = True
    for one in calls:
        size = Interval(0, 0, 0)
        if one.by_kind:
            size = _first(one.ranks, card, torch) if is_first else _further(one.ranks)
            is_first = False
        peers = min(one.ranks, _PER_MACHINE) - 1 if _PEER_CALLS & set(one.by_kind) else 0
        low, point, high = (round(mib * MIB) for mib in (size.low_mib, size.mib, size.high_mib + peers * _PEER_MIB))
        found.append(Communicator(one.ranks, dict(one.by_kind), point, low, high))
    return tuple(found)


def _first(ranks: int, card: Device, torch: str | None) -> Interval:
    if ranks == 1:
        return _ALONE
    if card.key not in _SWITCHED:
        return _JOINED
    version = re.match(r"2\.(\d+)", torch or "")
    minor = int(version[1]) if version else float("inf")
    return next((size for before, size in _ERAS if minor < before), _ERAS[-1][1])


def _further(ranks: int) -> Interval:
    return {1: _FURTHER_ALONE, 2: _FURTHER_PAIR}.get(ranks, _FURTHER)


def strangers_on(trace: Trace) -> int:
    """Return the number of other ranks with a context on this rank's card."""
    said = trace.header.get(RANKS)
    number = said.get("strangers", 0) if isinstance(said, dict) else 0
    return number if isinstance(number, int) and 0 <= number < 2**10 else 0


def _with_processes(found: Context, one: Context, trace: Trace) -> Context:
    """Return a context that includes the job's other processes on the card at the same time: `one` each, and their segments.

    Args:
        found: Context of the traced process.
        one: Context of each process.
        trace: Trace of the traced process.
    """
    others = [other.reserved for other in processes_beside(trace)]
    if not others:
        return found
    # Their estimates are as good as the traced one's: the bound uses the largest residual of such estimates.
    reserved, most = sum(others), 1 + max(residuals.values[-1] for residuals in RESIDUALS.values())
    low, point, high = (len(others) * size for size in (one.low_bytes, one.bytes, one.high_bytes))
    what = f"{len(others)} other processes of the job on this card"
    return found.plus(low + reserved, point + reserved, high + round(most * reserved), what=what)


def context_of_process(
    card: Device, cuda_major: int, torch: str | None, libraries: Collection[str], trace: Trace, outside_bytes: int = 0
) -> Context:
    """Return the memory on a process's card outside its segments: context, NCCL, and other ranks and processes.

    Args:
        card: The card.
        cuda_major: See `context_bytes`.
        torch: Version of torch on the card's machine; None: a current one.
        libraries: See `context_bytes`.
        trace: Trace of the process.
        outside_bytes: Memory that the job's libraries allocated themselves.
    """
    used = [one for one in sizes_of(calls_in(trace.ledger), card, torch) if one.calls]
    counted = set(libraries) - {"nccl"} if used else set(libraries)
    found = one = context_bytes(card, cuda_major, [library for library in LIBRARIES if library in counted], torch=torch)
    if used:
        sums = (sum(sizes) for sizes in zip(*((one.low_bytes, one.bytes_assumed, one.high_bytes) for one in used), strict=True))
        found = found.plus(*sums, what=f"NCCL for {len(used)} communicator{'s' if len(used) > 1 else ''}, public logs")
    if n := strangers_on(trace):
        # A stray context is bare, or its rank launched its first kernel here: public logs have both.
        bare, after = (context_bytes(card, cuda_major, (), torch=torch, kernels=kernels) for kernels in (False, True))
        found = found.plus(
            n * bare.low_bytes, n * bare.bytes, n * after.high_bytes, what=f"contexts of {n} other ranks on this card"
        )
    return _with_processes(found, one, trace).with_outside(outside_bytes)
