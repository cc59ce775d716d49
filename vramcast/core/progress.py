"""Progress of long work: the work reports what it does and how far it is, and this process's listener shows it.

A job runs in a process of its own. It writes its latest report on a board, memory that it shares with the worker; the worker
sends it to the caller. A stage that is shorter than the interval between two looks at the board may be missed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_NO_NUMBER: Final = -1


class Stage(StrEnum):
    """The stages of an estimate, in their usual order."""

    WORKER = "starting the worker"
    IMPORTS = "importing"
    COMMAND = "before the first step"
    MODEL = "building the model"
    STEPS = "step"
    EVALUATION = "evaluating"
    REST = "following the job"
    HISTORY = "reading the history"
    SIMULATION = "simulating"
    CARDS = "comparing cards"


_STAGES: Final = tuple(Stage)


@dataclass(frozen=True, slots=True)
class Event:
    """A report.

    Attributes:
        doing: A stage, or the name of a part of the work: "batch 64".
        done: The number of the step or part, from 1; None: not counted.
        total: The number of them all, for a command that of the wanted steps; None: unknown. Of the rest: seconds.
        part: The part of the work that is in this stage, if the work has several.
    """

    doing: str
    done: int | None = None
    total: int | None = None
    part: Event | None = None

    def __str__(self) -> str:
        if self.doing is Stage.REST:
            limit = "" if self.total is None else f" for at most {self.total} s"
            return f"{self.part}: step {self.done}, {self.doing} to an evaluation and its end{limit}".removeprefix("None: ")
        of = "" if self.total is None else f" of {self.total}" if (self.done or 0) <= self.total else f" ({self.total} wanted)"
        number = "" if self.done is None else f"{self.done}{of}"
        if number and not isinstance(self.doing, Stage):
            number = f"({number})" if of else f"(attempt {number})"
        return f"{self.part}: {self.doing} {number}".removeprefix("None: ").rstrip()


class Listener:
    """Receives the reports of this process and the output of its commands. This one ignores reports."""

    def hear(self, event: Event) -> None:
        """Receive a report; threads may report at the same time."""

    def output(self, said: bytes) -> None:
        """Write a command's output, or a message about it, to stderr; errors are ignored."""
        with suppress(OSError):
            while said:
                said = said[os.write(2, said) :]


listener = Listener()
_part: ContextVar[Event | None] = ContextVar("part", default=None)
_runs: ContextVar[list[object] | None] = ContextVar("runs", default=None)  # of one job, in the order of their output


def tell(stage: Stage, done: int | None = None, total: int | None = None) -> None:
    """Report a stage."""
    listener.hear(Event(stage, done, total, _part.get()))


@contextmanager
def part(name: str, done: int, total: int | None = None) -> Iterator[None]:
    """Mark what the block reports, in this thread, as that of one part of the work."""
    token = _part.set(Event(name, done, total))
    try:
        yield
    finally:
        _part.reset(token)


@contextmanager
def one_output() -> Iterator[None]:
    """Let one run of a job write its output inside the outermost block: further runs, and other ranks, repeat it."""
    token = _runs.set([] if (runs := _runs.get()) is None else runs)
    try:
        yield
    finally:
        _runs.reset(token)


def output(said: bytes, run: object) -> None:
    """Write the output of a run of a job, unless another run has written some (`one_output`)."""
    runs = _runs.get()
    if runs == []:
        runs.append(run)
    if runs is None or runs[0] is run:
        listener.output(said)


@contextmanager
def heard_by(other: Listener) -> Iterator[None]:
    """Let another listener receive the reports of the block, in all threads."""
    global listener
    before, listener = listener, other
    try:
        yield
    finally:
        listener = before


class Board(Listener):
    """The latest report, in memory that this process shares with its forks. Without such memory, forks are not heard."""

    def __init__(self) -> None:
        size_bytes = 3 * 8  # stage, done, total
        try:
            self._numbers = memoryview(mmap.mmap(-1, size_bytes)).cast("q")
        except PermissionError:  # the service's sandbox refuses shared memory, which would outlive a job
            self._numbers = memoryview(bytearray(size_bytes)).cast("q")
        self._numbers[0] = _NO_NUMBER

    def hear(self, event: Event) -> None:
        """Note a report of a stage."""
        self._numbers[1], self._numbers[2] = (_NO_NUMBER if n is None else n for n in (event.done, event.total))
        self._numbers[0] = _STAGES.index(Stage(event.doing))

    def read(self) -> list[int]:
        """Return the latest report as numbers, for `tell_numbers`."""
        return self._numbers.tolist()


def tell_numbers(numbers: Sequence[int]) -> None:
    """Report what a board in another process said; ignore anything else, since a job may write there."""
    with suppress(ValueError, TypeError, IndexError):
        stage, done, total = (int(number) for number in numbers)
        if stage >= 0:
            tell(_STAGES[stage], *(None if n < 0 else n for n in (done, total)))
