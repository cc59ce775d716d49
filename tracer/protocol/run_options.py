"""How a job is traced, beside what it is: switches of the machinery, which no job knows of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from vramcast.tracer.protocol.recorded_messages import Tape

Answers = Literal["drawn", "largest", "otherwise"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a job is traced. The portable tracers know of `answers` alone: their card has no end, and the rest comes after.

    Attributes:
        context_bytes: What of the card is gone before the first tensor.
        limited: Whether the card ends at its size; without, it has no end (what the job would need).
        expandable: Whether the job is known to switch expandable segments on, by its own code or the environment: on a card
            on an unlimited card they want addresses.
        follow_values: Whether the null GPU works out on the host what small tensors hold (`tracer/values`); a script's always.
        answers: What is told where a large value was drawn (`tracer/values`): a plausible one, the largest shape which the
            operator can return, or that and each yes for a no.
        shapes: Whether the null GPU also notes the shapes and dtypes which operators are given; the others always do. It takes
            a third more time, and changes no allocation.
        accesses: Whether the null GPU also notes which operator reads and writes which block, and when by the card's
            roofline; the other tracers cannot. It changes no allocation.
        limit_s: A training command is stopped after so many seconds, and what was seen till then counts; None: it is not.
        slow: Whether the card is infinitely slow (docs/multi-gpu.md, "Streams and time"); else it is infinitely fast.
        rank: Which of a command's ranks the traced process is.
        tape: What its ranks said which were traced before.
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


AS_USUAL: Final = RunOptions()
