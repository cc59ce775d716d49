"""Options of a trace that are not part of the job: switches of the tracers, invisible to the job."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from vramcast.core.brief import brief
from vramcast.hardware.stack import Stack
from vramcast.tracer.protocol.swap_rounds import SavedRound

Answers = Literal["drawn", "largest", "smallest", "otherwise"]
WATCHED_EVENTS: Final = 60_000  # arbitrary: requests and frees for which a loop is watched, some seconds
LEAST_WATCHED: Final = 32  # arbitrary: steps of a watched loop; a quarter is for allocations of the first steps
MOST_WATCHED: Final = 128  # arbitrary: buffers and windows of limited size have filled up by then


@dataclass(frozen=True, slots=True)
class LoopWatch:
    """The loop of a job to be watched for growing memory.

    Attributes:
        number: Number of the loop, from 0, in the order in which they begin.
        is_training: Whether it trains.
        steps: Number of steps; then the job is stopped.
    """

    number: int
    is_training: bool
    steps: int


@dataclass(slots=True)
class Tape:
    """The recorded messages of ranks, as bytes: only a process of the job itself opens them.

    Attributes:
        store: Keys and values of the store.
        said: (kind, ranks of the group, number of the call, rank) and the pickled object.
        alike: The same by places instead of ranks: messages at the same place of another group of equal size.
        pairs: Ranks of which one sends to the other: each may hold another part of the model.
    """

    store: dict[str, bytes] = field(default_factory=dict)
    said: dict[Hashable, bytes] = field(default_factory=dict)
    alike: dict[Hashable, bytes] = field(default_factory=dict)
    pairs: set[tuple[int, int]] = field(default_factory=set)

    def add(self, later: Tape) -> None:
        """Add the messages of another rank."""
        self.store |= later.store
        self.said |= later.said
        self.alike = later.alike | self.alike  # the first message wins: all ranks of its group are traced
        self.pairs |= later.pairs


@brief
@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a trace. The portable tracers use only `answers` and `cudnn`: their card is unlimited, and the rest is applied
    later.

    Attributes:
        context_bytes: Bytes of the card taken before the first tensor.
        limited: Whether the card ends at its size; otherwise it is unlimited (for the memory a job needs).
        expandable: Whether the job is known to switch expandable segments on, by its own code or the environment: on an
            unlimited card, they need addresses.
        follow_values: Whether the null GPU computes values of small tensors on the host (`tracer/values`); always for a script.
        answers: The answers for drawn values (`tracer/values`): plausible ones; the largest shape that the operator can
            return and the largest number; the smallest number; or the largest shape and each branch inverted.
        shapes: Whether the null GPU also records the shapes and dtypes of operators' arguments; the other tracers always do.
            It takes a third more time, and changes no allocation.
        accesses: Whether the null GPU also records the blocks that each operator reads and writes, and the time by the
            card's roofline; the other tracers cannot. It changes no allocation.
        limit_s: Seconds after which a training command is stopped, keeping the observations so far; None: no limit.
        slow: Whether the card is infinitely slow (docs/multi-gpu.md, "Streams and time"); otherwise it is infinitely fast.
        rank: The traced rank of a command.
        tape: Messages of the ranks traced before.
        watch: The loop to watch for growing memory; None: the job is followed within its own limits.
        swaps: Moves of saved tensors to the host, which the job makes in the null GPU; empty: the trace says which tensors
            are saved, and nothing is moved; None: neither.
        checkpointed: Paths of modules that the job recomputes in the backward pass, in the null GPU.
        changes: (name, value) of the changes that are applied inside a command's program (`tracer/changes`).
        host_bytes: Main memory that the job's processes may hold; None: 80 % of the available memory.
        cudnn: Version of the cuDNN that chooses plans instead of that of the job's stack; "": the stack decides.

    Example:
        >>> options = vramcast.RunOptions(context_bytes=500 << 20, shapes=True)
        >>> options.limited, options.answers
        (True, 'drawn')
    """

    context_bytes: int = 0
    limited: bool = True
    expandable: bool = False
    follow_values: bool = False
    answers: Answers = "drawn"
    shapes: bool = False
    accesses: bool = False
    limit_s: float | None = None
    slow: bool = False
    rank: int = 0
    tape: Tape = field(default_factory=Tape, compare=False)
    watch: LoopWatch | None = None
    swaps: tuple[SavedRound, ...] | None = None
    checkpointed: tuple[str, ...] = ()
    changes: tuple[tuple[str, Any], ...] = ()
    host_bytes: int | None = None
    cudnn: str = ""

    def stack_of_plans(self, stack: Stack | None) -> Stack | None:
        """Return the stack that selects the cuDNN of a job.

        Args:
            stack: The stack of the job.

        Returns:
            The same stack, with the cuDNN of these options if they name one.
        """
        return replace(stack or Stack(), cudnn=self.cudnn) if self.cudnn else stack


AS_USUAL: Final = RunOptions()
