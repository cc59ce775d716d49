"""The loops of a job: the end of each step of a training, an evaluation or a generation, as a place in the allocator's
history.

The memory that a loop keeps from step to step is read from its trace (`vramcast.estimates.growth`). In a watched loop,
cyclic garbage is collected at the end of each step, so that uncollected garbage does not count as kept.
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
_FIRST_LOOK: Final = 8  # arbitrary: steps before the first record of live blocks and their allocators; then doubled
_MOST_LOOPS: Final = 100  # arbitrary: number of recorded loops; evaluations of an endless training


@dataclass(slots=True)
class Loop:
    """One loop.

    Attributes:
        number: From 0, in the order in which they begin.
        phase: training, evaluation or generation.
        ends: Places in the history at which its first steps ended.
        length: Number of its steps, if known.
        is_cut: Whether it was ended before its own end.
        is_sampled: Whether it has left out steps.
        is_over: Whether something else has begun.
    """

    number: int
    phase: str
    ends: list[int] = field(default_factory=list)
    length: int | None = None
    is_cut: bool = False
    is_sampled: bool = False
    is_over: bool = False


class LineWatcher(Protocol):
    """An observer of the lines of user code that allocated a loop's kept blocks."""

    def calls_backward(self) -> None:
        """Record that a backward pass begins here."""

    def look(self, loop: Loop) -> None:
        """Record the allocating line of each live block, and the number of steps of the loop."""


class Loops:
    """All loops of one job.

    Args:
        position: Returns the place in the allocator's history.
        watch: The loop to watch, and the number of steps; None: none.
        steps_known: Returns the number of training steps of the whole job, if known.

    Attributes:
        all: In the order in which they began.
        is_over: Whether the watched loop made the wanted number of steps.
        watcher: Records the allocating lines of live blocks while a loop is watched.
    """

    def __init__(
        self, position: Callable[[], int], watch: LoopWatch | None, steps_known: Callable[[], int | None] = lambda: None
    ) -> None:
        self.all: list[Loop] = []
        self.is_over = False
        self.watcher: LineWatcher | None = None
        self._position, self._watch, self._steps_known = position, watch, steps_known
        self._n_loops = 0
        self._training: Loop | None = None
        self._evaluation: Loop | None = None

    @property
    def watches_evaluation(self) -> bool:
        """Return whether a loop without training is watched."""
        return self._watch is not None and not self._watch.is_training

    def jumped(self, *, trains: bool, grows: bool) -> None:
        """Record that a loop left out steps: its next one does not follow the last.

        Args:
            trains: Whether they were training steps.
            grows: Whether each of them keeps more.
        """
        current = self._training if trains else self.all[-1] if self.all else None
        if current is not None:
            current.is_cut |= grows and not current.is_sampled
            current.is_sampled = True

    def begin(self, phase: str) -> Loop:
        """Return a loop that begins."""
        loop = Loop(self._n_loops, phase)
        self._n_loops += 1
        if loop.number < _MOST_LOOPS:
            self.all.append(loop)
        return loop

    def trained(self) -> None:
        """Record that a training step has ended."""
        if self._training is None:
            self._training = self.begin(TRAINING)
        self._evaluation = None
        self.step_ends(self._training)

    def trains(self) -> None:
        """Record that a pass with training begins: the last evaluation is over."""
        if self.all and self.all[-1].phase != TRAINING:
            self.all[-1].is_over = True

    def passes(self, *, goes_on: bool) -> None:
        """Record the begin of a forward pass without training.

        Args:
            goes_on: Whether nothing was trained since the last one.
        """
        if self._evaluation is None or not goes_on:
            self._evaluation = self.begin(GENERATION if _generates() else EVALUATION)
        self.step_ends(self._evaluation)

    def step_ends(self, loop: Loop) -> None:
        """Record that a step of a loop has ended."""
        if loop.is_sampled or len(loop.ends) >= MOST_WATCHED or self.is_over:
            return
        is_watched = self._watch is not None and loop.number == self._watch.number
        if is_watched:
            gc.collect()
            if not loop.ends:
                gc.freeze()  # imported objects need not be examined after each step
        loop.ends.append(self._position())
        if self._watch is not None and is_watched:
            done = len(loop.ends)
            self.is_over = loop.is_cut = done == self._watch.steps
            if self.is_over and loop.phase == TRAINING:
                loop.length = self._steps_known()
            if self.watcher is not None and (self.is_over or (done >= _FIRST_LOOK and done & (done - 1) == 0)):
                self.watcher.look(loop)

    def facts(self, row_of: Callable[[int], int], *, is_whole: bool) -> list[dict[str, Any]]:
        """Return the facts about the loops for a trace's header, as JSON.

        Args:
            row_of: Returns the row of the trace at a place in the history.
            is_whole: Whether the job ran to its own end, so that each loop that was not cut has ended too.
        """
        last = self.all[-1] if len(self.all) == self._n_loops > 0 else None
        return [
            {
                "number": loop.number,
                "phase": loop.phase,
                "ends": [row_of(at) for at in loop.ends],
                "length": loop.length,
                "is_open": loop.is_cut or (not is_whole and not loop.is_over and (loop is last or loop is self._training)),
            }
            for loop in self.all
            if len(loop.ends) > 1
        ]


def _generates() -> bool:
    """Return whether the forward pass that begins belongs to a generating method or function."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if "generate" in frame.f_code.co_name:
            return True
    return False
