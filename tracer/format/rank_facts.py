"""Facts about a job's ranks and processes in a trace's header: peaks, and sharded parameters by module."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.core.errors import TraceFileError
from vramcast.tracer.format.trace import PROCESSES, RANKS, SHARDING, Trace


@dataclass(frozen=True, slots=True)
class RankPeaks:
    """One traced rank. Sizes in bytes.

    Attributes:
        number: Its number among all ranks.
        allocated, reserved: Its peaks.
    """

    number: int
    allocated: int
    reserved: int


def world_size_of(trace: Trace) -> int:
    """Return the number of ranks of a job; 1 if the trace does not record it.

    Raises:
        TraceFileError: The header is damaged.
    """
    said = trace.header.get(RANKS)
    if said is None:
        return 1
    size = said.get("world_size") if isinstance(said, dict) else None
    if not isinstance(size, int) or size < 1:
        raise TraceFileError(f"The trace's ranks are damaged ({str(said)[:80]}): record it again.")
    return size


def ranks_of(trace: Trace) -> tuple[RankPeaks, ...]:
    """Return the traced ranks; none for a job of one rank.

    Raises:
        TraceFileError: The header is damaged.
    """
    if world_size_of(trace) == 1:
        return ()
    try:
        return tuple(RankPeaks(*map(int, peaks)) for peaks in trace.header[RANKS]["peaks"])
    except (TypeError, KeyError, ValueError) as error:  # a trace may be untrusted
        raise TraceFileError(f"The trace's ranks are damaged ({type(error).__name__}: {error}): record it again.") from None


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """One process of a job with several on one card. Sizes in bytes.

    Attributes:
        command: Its command, for display.
        reserved: Peak of its allocator; its context comes on top.
        is_at_once: Whether it lived at the joint peak.
    """

    command: str
    reserved: int
    is_at_once: bool


def processes_of(trace: Trace) -> tuple[ProcessPeak, ...]:
    """Return the processes that used the card, the traced one first; none for a job of one process.

    Raises:
        TraceFileError: The header is damaged.
    """
    said = trace.header.get(PROCESSES, [])
    try:
        return tuple(ProcessPeak(str(command), int(reserved), bool(is_at_once)) for command, reserved, is_at_once in said)
    except (TypeError, ValueError) as error:  # a trace may be untrusted
        raise TraceFileError(f"The trace's processes are damaged ({type(error).__name__}: {error}): record it again.") from None


def processes_beside(trace: Trace) -> tuple[ProcessPeak, ...]:
    """Return the job's other processes that hold memory at the same time as the traced one."""
    return tuple(one for one in processes_of(trace)[1:] if one.is_at_once)


def beside_bytes(trace: Trace) -> int:
    """Return the bytes that the job's other processes hold at the same time as the traced one, without contexts."""
    return sum(one.reserved for one in processes_beside(trace))


@dataclass(frozen=True, slots=True)
class HeldParameters:
    """One rank's parameters of a module. Sizes in bytes.

    Attributes:
        module: Path up to its first number, `layers.0`; without a number, the module itself.
        full: All parameters.
        sharded: This rank's part of the sharded ones.
        replicated: Those that each rank has in full.
    """

    module: str
    full: int
    sharded: int
    replicated: int


def sharding_of(trace: Trace) -> tuple[HeldParameters, ...]:
    """Return the traced rank's parameters, in the model's order; empty if they were not recorded.

    Raises:
        TraceFileError: The header is damaged.
    """
    said = trace.header.get(SHARDING)
    if said is None:
        return ()
    try:
        return tuple(HeldParameters(str(module), *map(int, sizes)) for module, *sizes in said["modules"])
    except (TypeError, KeyError, ValueError) as error:  # a trace may be untrusted
        raise TraceFileError(f"The trace's sharding is damaged ({type(error).__name__}: {error}): record it again.") from None


def are_shards_equal(trace: Trace) -> bool:
    """Return whether all ranks are known to have shards of equal size."""
    said = trace.header.get(SHARDING)
    return isinstance(said, dict) and said.get("is_even") is True
