"""How a job is traced, beside what it is: switches of the machinery, which no job knows of."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Literal

Answers = Literal["drawn", "largest", "smallest", "otherwise"]
LEAST_WATCHED: Final = 32  # arbitrary: steps of a loop that is watched; a quarter is for what the first steps make
MOST_WATCHED: Final = 128  # arbitrary: what fills up (windows, buffers of so many entries) has done so


@dataclass(frozen=True, slots=True)
class LoopWatch:
    """Which loop of a job is followed to see whether it keeps more and more.

    Attributes:
        number: Of the loop, from 0, in the order in which they begin.
        is_training: Whether it trains.
        steps: For how many steps; then the job is stopped.
    """

    number: int
    is_training: bool
    steps: int


@dataclass(slots=True)
class Tape:
    """What ranks said, as bytes: only a process of the job itself opens them.

    Attributes:
        store: Keys of the store, and what was set.
        said: (kind, ranks of the group, number of the call, rank) and the pickled object.
        alike: The same by places in place of ranks: what is exchanged at the same place of another group of as many.
        pairs: Ranks of which one sends to the other: each may hold another part of the model.
    """

    store: dict[str, bytes] = field(default_factory=dict)
    said: dict[Hashable, bytes] = field(default_factory=dict)
    alike: dict[Hashable, bytes] = field(default_factory=dict)
    pairs: set[tuple[int, int]] = field(default_factory=set)

    def add(self, later: Tape) -> None:
        """Add what another rank said."""
        self.store |= later.store
        self.said |= later.said
        self.alike = later.alike | self.alike  # the first who said it: its group has all its ranks traced
        self.pairs |= later.pairs


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a job is traced. The portable tracers know of `answers` alone: their card has no end, and the rest comes after.

    Attributes:
        context_bytes: What of the card is gone before the first tensor.
        limited: Whether the card ends at its size; without, it has no end (what the job would need).
        expandable: Whether the job is known to switch expandable segments on, by its own code or the environment: on a card
            on an unlimited card they want addresses.
        follow_values: Whether the null GPU works out on the host what small tensors hold (`tracer/values`); a script's always.
        answers: What is told where a value was drawn (`tracer/values`): a plausible one, the largest shape which the operator
            can return and the largest number, the smallest number, or the largest shape and each yes for a no.
        shapes: Whether the null GPU also notes the shapes and dtypes which operators are given; the others always do. It takes
            a third more time, and changes no allocation.
        accesses: Whether the null GPU also notes which operator reads and writes which block, and when by the card's
            roofline; the other tracers cannot. It changes no allocation.
        limit_s: A training command is stopped after so many seconds, and what was seen till then counts; None: it is not.
        slow: Whether the card is infinitely slow (docs/multi-gpu.md, "Streams and time"); else it is infinitely fast.
        rank: Which of a command's ranks the traced process is.
        tape: What its ranks said which were traced before.
        watch: Which loop is followed to see whether it keeps more and more; None: the job is followed as it says itself.
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


AS_USUAL: Final = RunOptions()
