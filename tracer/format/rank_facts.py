"""What a trace's header tells of a job's ranks and processes: their peaks, and which parameters are sharded, by module."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.core.errors import TraceFileError
from vramcast.tracer.format.trace import PROCESSES, RANKS, SHARDING, Trace


@dataclass(frozen=True, slots=True)
class RankPeaks:
    """One rank which was traced. Sizes in bytes.

    Attributes:
        number: Among all ranks.
        allocated, reserved: Its peaks.
    """

    number: int
    allocated: int
    reserved: int


def world_size_of(trace: Trace) -> int:
    """Return how many ranks a job has; 1 where the trace does not say.

    Raises:
        TraceFileError: the header is damaged.
    """
    said = trace.header.get(RANKS)
    if said is None:
        return 1
    size = said.get("world_size") if isinstance(said, dict) else None
    if not isinstance(size, int) or size < 1:
        raise TraceFileError(f"The trace's ranks are damaged ({str(said)[:80]}): record it again.")
    return size


def ranks_of(trace: Trace) -> tuple[RankPeaks, ...]:
    """Return the ranks which were traced; none of a job of one rank.

    Raises:
        TraceFileError: the header is damaged.
    """
    if world_size_of(trace) == 1:
        return ()
    try:
        return tuple(RankPeaks(*map(int, peaks)) for peaks in trace.header[RANKS]["peaks"])
    except (TypeError, KeyError, ValueError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's ranks are damaged ({type(error).__name__}: {error}): record it again.") from None


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """One process of a job that has several on one card. Sizes in bytes.

    Attributes:
        command: Its words, for people.
        reserved: What its allocator held at most; its context comes on top.
        is_at_once: Whether it lived when all took most together.
    """

    command: str
    reserved: int
    is_at_once: bool


def processes_of(trace: Trace) -> tuple[ProcessPeak, ...]:
    """Return the processes that used the card, the traced one first; none of a job of one process.

    Raises:
        TraceFileError: the header is damaged.
    """
    said = trace.header.get(PROCESSES, [])
    try:
        return tuple(ProcessPeak(str(command), int(reserved), bool(is_at_once)) for command, reserved, is_at_once in said)
    except (TypeError, ValueError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's processes are damaged ({type(error).__name__}: {error}): record it again.") from None


def beside_bytes(trace: Trace) -> int:
    """Return what other processes of the job hold of the card at once with the traced one, without their contexts."""
    return sum(one.reserved for one in processes_of(trace)[1:] if one.is_at_once)


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank holds of a module's parameters. Sizes in bytes.

    Attributes:
        module: Path up to its first number, `layers.0`, or of what has none the module itself.
        full: All of them.
        sharded: This rank's part of those which are sharded.
        replicated: Those which each rank has whole.
    """

    module: str
    full: int
    sharded: int
    replicated: int


def sharding_of(trace: Trace) -> tuple[Held, ...]:
    """Return what the traced rank holds, in the model's order; nothing where it was not noted.

    Raises:
        TraceFileError: the header is damaged.
    """
    said = trace.header.get(SHARDING)
    if said is None:
        return ()
    try:
        return tuple(Held(str(module), *map(int, sizes)) for module, *sizes in said["modules"])
    except (TypeError, KeyError, ValueError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's sharding is damaged ({type(error).__name__}: {error}): record it again.") from None


def are_shards_equal(trace: Trace) -> bool:
    """Return whether every rank's shards are known to have the same sizes."""
    said = trace.header.get(SHARDING)
    return isinstance(said, dict) and said.get("is_even") is True
