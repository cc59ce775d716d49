"""The loops of a job: where in the allocator's history each step of a training, an evaluation, a generation ended.

What a loop keeps from step to step is read from its trace (`vramcast.estimates.growth`). Where one is watched for that, cyclic
garbage is collected at the end of each step: what Python has only not come to yet is kept by nobody.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from vramcast.tracer.protocol.run_options import MOST_WATCHED, LoopWatch

TRAINING: Final = "training"
EVALUATION: Final = "evaluation"
GENERATION: Final = "generation"
_FIRST_LOOK: Final = 8  # arbitrary: steps after which it is first noted who asked for what is alive; then after twice as many
_MOST_LOOPS: Final = 100  # arbitrary: which are noted; evaluations of an endless training


@dataclass(slots=True)
class Loop:
    """One loop.

    Attributes:
        number: From 0, in the order in which they begin.
        phase: training, evaluation or generation.
        ends: Places in the history at which its first steps ended.
        length: How many steps it makes, if that is known.
        is_cut: Whether it was ended before its own end.
    """

    number: int
    phase: str
    ends: list[int] = field(default_factory=list)
    length: int | None = None
    is_cut: bool = False


class Watcher(Protocol):
    """Whoever notes which lines of the user's code asked for what a loop keeps."""

    def calls_backward(self) -> None:
        """Note that a backward pass begins here."""

    def look(self, loop: Loop) -> None:
        """Note who asked for what is alive, and how many steps the loop makes."""


class Loops:
    """All loops of one job.

    Args:
        position: Returns the place in the allocator's history.
        watch: Which is watched, and for how many steps; None: none.

    Attributes:
        all: In the order in which they began.
        is_over: Whether the one that is watched made as many steps as were wanted.
        watcher: Notes who asked for what is alive, where a loop is watched.
    """

    def __init__(self, position: Callable[[], int], watch: LoopWatch | None) -> None:
        self.all: list[Loop] = []
        self.is_over = False
        self.watcher: Watcher | None = None
        self._position, self._watch = position, watch
        self._n_loops = 0
        self._training: Loop | None = None
        self._evaluation: Loop | None = None

    def batches(self, loop: Loop | None, usual: int) -> int:
        """Return how many batches of a data loader are wanted: as many as usual, or as many steps as a loop is watched for."""
        return usual if self._watch is None or loop is None or loop.number != self._watch.number else self._watch.steps

    def begin(self, phase: str) -> Loop:
        """Return a loop that begins."""
        loop = Loop(self._n_loops, phase)
        self._n_loops += 1
        if loop.number < _MOST_LOOPS:
            self.all.append(loop)
        return loop

    def trained(self) -> None:
        """Note that a training step has ended."""
        if self._training is None:
            self._training = self.begin(TRAINING)
        self._evaluation = None
        self.step_ends(self._training)

    def passes(self, *, goes_on: bool) -> None:
        """Note that a forward pass begins in which nothing is trained.

        Args:
            goes_on: Whether nothing was trained since the last one.
        """
        if self._evaluation is None or not goes_on:
            self._evaluation = self.begin(GENERATION if _generates() else EVALUATION)
        self.step_ends(self._evaluation)

    def step_ends(self, loop: Loop) -> None:
        """Note that a step of a loop has ended."""
        if len(loop.ends) >= MOST_WATCHED or self.is_over:
            return
        is_watched = self._watch is not None and loop.number == self._watch.number
        if is_watched:
            gc.collect()
            if not loop.ends:
                gc.freeze()  # what the job has imported need not be looked at after each step
        loop.ends.append(self._position())
        if self._watch is not None and is_watched:
            done = len(loop.ends)
            self.is_over = loop.is_cut = done == self._watch.steps
            if self.watcher is not None and (self.is_over or (done >= _FIRST_LOOK and done & (done - 1) == 0)):
                self.watcher.look(loop)

    def facts(self, row_of: Callable[[int], int], *, is_whole: bool) -> list[dict[str, Any]]:
        """Return what a trace's header says of the loops, as JSON.

        Args:
            row_of: Returns the row of the trace at a place in the history.
            is_whole: Whether the job came to its own end, so that each loop which was not cut has ended too.
        """
        last = self.all[-1] if len(self.all) == self._n_loops > 0 else None
        return [
            {
                "number": loop.number,
                "phase": loop.phase,
                "ends": [row_of(at) for at in loop.ends],
                "length": loop.length,
                "is_open": loop.is_cut or (not is_whole and (loop is last or loop is self._training)),
            }
            for loop in self.all
            if len(loop.ends) > 1
        ]


def _generates() -> bool:
    """Return whether the forward pass that begins is one of a method or function which generates."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if "generate" in frame.f_code.co_name:
            return True
    return False
