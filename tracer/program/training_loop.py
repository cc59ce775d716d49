"""The course of a training command: its steps, its phases, and the point where enough was observed.

    build -> training -> evaluation -> checkpoint -> training ...

A step is a training step: an optimizer has stepped after a backward pass. So a library that steps its optimizer once for
each group of parameters makes one step, and a job with two optimizers has made a step when both have.

After the last wanted step, a command is followed to its end with its loops sampled (`sampled_loops`), or through its next
evaluation. It is stopped at a safe place: before the next forward or backward pass, or before the next batch.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from vramcast.core import progress
from vramcast.core.progress import Stage
from vramcast.jobs.job import Until
from vramcast.tracer.program.loops import EVALUATION, TRAINING, Loop, Loops
from vramcast.tracer.program.sampled_loops import SampledLoops
from vramcast.tracer.protocol.run_options import LoopWatch

BUILD, CHECKPOINT = "build", "checkpoint"
PHASES: Final = (BUILD, TRAINING, EVALUATION, CHECKPOINT)
_PATIENCE: Final = 10  # arbitrary: multiple of the wanted steps that one optimizer makes while another makes none


class StopJob(BaseException):
    """The end of an unmodified script once enough was observed; a BaseException, so that no `except Exception` stops it."""


@dataclass(slots=True)
class _Optimizer:
    """Counts of one optimizer's steps.

    Attributes:
        steps: Training steps.
        after_backward: The count of backward passes at its last step.
        calls, calls_before: Number of calls in this step, and in the one before.
        changes: Version of its first parameter at the last check; None: its calls are seen.
    """

    reference: weakref.ref[Any]
    steps: int = 0
    after_backward: int = 0
    calls: int = 0
    calls_before: int = 0
    changes: int | None = 0


@dataclass(slots=True)
class _Loader:
    trained: tuple[int, int]  # steps and backward passes before it began
    loop: Loop | None = None  # a loop without training


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits for following a command.

    Attributes:
        steps: Wanted training steps.
        until: As in `Command`.
        budget_s: Seconds allowed after the last wanted step; None: no limit.
    """

    steps: int = 3
    until: Until = "steps"
    budget_s: float | None = None

    @classmethod
    def of_watch(cls, watch: LoopWatch, steps: int) -> LoopLimits:
        """Return the limits for a command with a watched loop, which stops the command itself.

        Args:
            watch: The watched loop.
            steps: Training steps wanted before an evaluation.
        """
        return cls(watch.steps + 1 if watch.is_training else steps, "evaluation")


class Course:
    """The course of one job.

    Args:
        limits: Limits for following it; None: to its end, whatever it does, and nothing is cut.
        position: Returns the place in the allocator's history.
        watch: The loop to watch; None: none.
        totals: See `SampledLoops`; None: no loop is sampled.

    Attributes:
        loops: The job's observed loops.
        spans: (place in the history, phase) where each phase begins.
        counts: For each phase: its number of occurrences; forward passes of an evaluation, files written.
        in_backward: Number of running backward passes, nested in each other.
        in_forward: Whether a whole model is running.
        is_rank: Whether the job has other ranks.
        backwards: Number of completed backward passes.
        work: Number of forward and backward passes begun, and of steps.
        sampled: The sampled loops; None: none is sampled.
        without_optimizer: Called after each backward pass of a job that has no optimizer, which would own the gradients.
        is_stopped: Whether the job was stopped, because enough was observed or from outside.
        stopped_by: The reason for a stop from outside, in words.
    """

    def __init__(
        self, limits: LoopLimits | None, position: Callable[[], int], watch: LoopWatch | None = None,
        totals: Callable[[], tuple[int, int, int, int]] | None = None,
    ) -> None:  # fmt: skip
        self.loops = Loops(position, watch, lambda: self.sampled.steps_known() if self.sampled is not None else None)
        self.spans: list[tuple[int, str]] = [(0, BUILD)]
        self.counts = dict.fromkeys(PHASES, 0)
        self._limits = limits
        self.position = position
        self._main = threading.get_ident()
        self._optimizers: dict[int, _Optimizer] = {}
        self.backwards = 0
        self.in_backward = 0
        self._by_hand = self._by_hand_at = 0  # steps of a job without an optimizer, and the last one's backward pass
        self._loaders: weakref.WeakKeyDictionary[Any, _Loader] = weakref.WeakKeyDictionary()
        self._enough_at: float | None = None
        self._evaluated = False  # after a step
        self._left_out = 0  # steps that sampled loops left out
        self._last_place = "the last step"  # where the job was stopped
        self.in_forward = False
        self.is_rank = False
        self.work = 0
        is_sampled = limits is not None and limits.until != "steps" and totals is not None
        self.sampled = SampledLoops(self, totals) if is_sampled and totals is not None else None
        self.stopped_by = ""
        self.without_optimizer: Callable[[], None] = lambda: None
        self.is_stopped = self._is_ours = False

    # -------------------------------------------------------------------------------------------- events
    def exists(self, optimizer: Any) -> None:
        """Record that an optimizer was created."""
        self._optimizers.setdefault(id(optimizer), _Optimizer(weakref.ref(optimizer)))

    def steps_now(self, optimizer: Any) -> None:
        """Record that an optimizer begins to step: its steps are seen. It may run whole passes inside (LBFGS)."""
        self.exists(optimizer)
        self._optimizers[id(optimizer)].changes = None

    def stepped(self, optimizer: Any) -> None:
        """Record that an optimizer has stepped."""
        self.work += 1
        self.steps_now(optimizer)
        self._count(self._optimizers[id(optimizer)])

    def _count(self, known: _Optimizer) -> None:
        backwards = self.backwards + bool(self.in_backward)  # an optimizer may step inside the backward pass
        before = self.steps
        if backwards > known.after_backward:
            known.steps += 1
            known.after_backward = backwards
            known.calls, known.calls_before = 0, known.calls
        known.calls += 1
        if self.steps > before:
            self._step_ended()
        self._look_whether_enough()
        if self._enough_at is not None and self._limits is not None and self._limits.until == "steps" and self._is_complete():
            self.end_here()

    def forward(self, module: Any, *, has_grad: bool) -> None:
        """Record that the forward pass of a whole model begins."""
        if self.in_backward or threading.get_ident() != self._main:
            return
        self.work += 1
        trains = any(parameter.requires_grad for parameter in module.parameters())
        if trains and has_grad:
            self._steps_unseen()
            self._step_by_hand()
            if not self.backwards:  # perhaps there never will be one
                self._passes()
            else:
                self.loops.trains()
            self._boundary(TRAINING)
        elif trains and not module.training:
            self._passes()
            self._boundary(EVALUATION)
            self.counts[EVALUATION] += 1
            self._evaluated |= self.steps > 0
        else:
            if not self.backwards:  # a job with inference only
                self._passes()
            self._boundary(None)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Mark the context as a backward pass; a nested one is part of it."""
        if threading.get_ident() != self._main:
            yield
            return
        if not self.in_backward:
            self._boundary(TRAINING)
            if self.loops.watcher is not None:
                self.loops.watcher.calls_backward()
        self.work += 1
        self.in_backward += 1
        try:
            yield
        finally:
            self.in_backward -= 1
            self.backwards += not self.in_backward
        if not self.in_backward and not self._optimizers:
            self.without_optimizer()

    def gives(self, loader: Any, *, has_grad: bool) -> None:
        """Record that an iterator of a data loader gives another batch.

        Args:
            loader: The iterator.
            has_grad: Whether autograd is on; while it is off, nothing is trained.
        """
        if threading.get_ident() != self._main:
            return
        known = self._loaders.setdefault(loader, _Loader((self.steps, self.backwards)))
        self._boundary(None)
        if not has_grad and known.trained == (self.steps, self.backwards):
            self._evaluates(known, loader)

    def ends(self, loader: Any) -> None:
        """Record that a pass over the data has ended, or begins again by the same iterator of a data loader."""
        self._loaders.pop(loader, None)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Mark the context as the writing of a checkpoint."""
        before = self.spans[-1][1]
        self.counts[CHECKPOINT] += 1
        self._enter(CHECKPOINT)
        try:
            yield
        finally:
            self._enter(before)

    # -------------------------------------------------------------------------------------------- sampled loops
    @property
    def is_busy(self) -> bool:
        """Return whether a model is running."""
        return self.in_forward or self.in_backward > 0

    @property
    def left_s(self) -> float | None:
        """Return the seconds left for the job; None: it has no limit, or other ranks, which have a time of their own."""
        budget_s = None if self._limits is None or self.is_rank else self._limits.budget_s
        return None if budget_s is None or self._enough_at is None else max(self._enough_at + budget_s - time.monotonic(), 0.0)

    def may_jump(self, *, trains: bool) -> bool:
        """Return whether a loop may leave out passes: not before the wanted steps, nor while it is watched."""
        return self._enough_at is not None if trains else not self.loops.watches_evaluation

    def jumped(self, steps: int, *, grows: bool) -> None:
        """Record that passes with that many training steps were left out, and whether each keeps more."""
        self._left_out += steps
        self.loops.jumped(trains=steps > 0, grows=grows)

    def goes_on(self) -> None:
        """End the job: its innermost loop goes on without a known end.

        Raises:
            StopJob: The job ends.
        """
        assert self.sampled is not None
        self._last_place = self.sampled.place + ", which has no known end"
        self.end_here()

    @property
    def is_limited(self) -> bool:
        """Return whether the job is a command that is cut short and stopped."""
        return self._limits is not None

    def stop(self, why: str) -> None:
        """Let the job end at the next safe place."""
        self.is_stopped, self.stopped_by = True, why

    def stop_at_once(self, why: str) -> None:
        """End the job here, or, if our own code is running, after it.

        Raises:
            StopJob: The job ends.
        """
        self.stop(self.stopped_by or why)
        if not self._is_ours:
            raise StopJob

    def end_here(self) -> None:
        """End the job: nothing that matters follows.

        Raises:
            StopJob: The job ends.
        """
        self.is_stopped = True
        raise StopJob

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Mark the context as our own bookkeeping, which a stop from outside must not interrupt."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False
        if self.is_stopped:
            raise StopJob

    # -------------------------------------------------------------------------------------------- results
    @property
    def steps(self) -> int:
        """Return the training steps so far: those of the optimizer with the most steps, or by hand."""
        return max((known.steps for known in self._optimizers.values()), default=0) or self._by_hand

    @property
    def all_steps(self) -> int:
        """Return the training steps so far, with those that sampled loops left out."""
        return self.steps + self._left_out

    def facts(self, phases: Sequence[tuple[int, str]], *, is_whole: bool, ended: str) -> dict[str, Any]:
        """Return the facts about the course for a trace's header, as JSON.

        Args:
            phases: (row, phase) where each begins in the trace.
            is_whole: Whether the job ran to its own end.
            ended: The reason for an earlier end, in words, unless we ended it.
        """
        counts = {**self.counts, TRAINING: self.steps}
        missing = ([] if is_whole else self.not_reached()) + (self.sampled.doubts() if self.sampled is not None else [])
        seen = {"steps": self.steps, "of_steps": self.all_steps if is_whole else None,
                "evaluations": self._evaluations(), "to_end": is_whole}  # fmt: skip
        return {"phases": [[*span] for span in phases], "counts": counts, "not_reached": missing, "ended": ended, "seen": seen}

    def _evaluations(self) -> int:
        """Return the number of evaluations; checkpoints do not divide them."""
        return sum(phase == EVALUATION for phase, _ in groupby(one for _, one in self.spans if one != CHECKPOINT))

    def not_reached(self) -> list[str]:
        """Return the parts of a stopped job that were not observed, in words."""
        return [f"what follows {self._last_place}"] + [f"a step of {_described(optimizer)}" for optimizer in self._idle()]

    # -------------------------------------------------------------------------------------------- progress of the course
    def _idle(self) -> list[Any]:
        """Return the card's optimizers that never stepped, except those whose parameters another one has."""
        alive = [(known, optimizer) for known in self._optimizers.values() if (optimizer := known.reference()) is not None]
        stepped = {id(p) for known, optimizer in alive if known.steps for p in _parameters(optimizer)}
        idle = [optimizer for known, optimizer in alive if not known.steps]
        return [
            optimizer
            for optimizer in idle
            if any(p.is_cuda and p.requires_grad and id(p) not in stepped for p in _parameters(optimizer))
        ]

    def _look_whether_enough(self) -> None:
        if self._limits is None or self._enough_at is not None:
            return
        wanted, most = self._limits.steps, self.steps
        if most < wanted:
            return
        others = [known.steps for known in self._optimizers.values() if known.steps and known.reference() is not None]
        if most >= wanted * _PATIENCE or (min(others, default=most) >= wanted and not self._idle()):
            self._enough_at = time.monotonic()

    def _is_complete(self) -> bool:
        """Return whether every optimizer was called as often in this step as in the one before; unknown in the first step."""
        called = [known for known in self._optimizers.values() if known.steps]
        return all(known.calls_before and known.calls == known.calls_before for known in called)

    def _steps_unseen(self) -> None:
        """Count steps of compiled optimizers, whose calls are invisible: their parameters have changed."""
        for known in self._optimizers.values():
            optimizer = known.reference()
            if known.changes is None or optimizer is None or not (parameters := _parameters(optimizer)):
                continue
            before, known.changes = known.changes, parameters[0]._version
            if self.backwards > known.after_backward and known.changes > before:
                self._count(known)

    def _step_by_hand(self) -> None:
        """Count a step of a job without an optimizer: a backward pass, and then another forward pass."""
        if self.backwards > self._by_hand_at and not any(known.reference() for known in self._optimizers.values()):
            self._by_hand += 1
            self._by_hand_at = self.backwards
            self._step_ended()
            self._look_whether_enough()

    def _step_ended(self) -> None:
        self.loops.trained()
        self.is_stopped |= self.loops.is_over and self.is_limited

    def _passes(self) -> None:
        """Record a forward pass without training."""
        self.loops.passes(goes_on=self.spans[-1][1] == EVALUATION or not self.backwards)
        self.is_stopped |= self.loops.is_over and self.is_limited

    def _boundary(self, phase: str | None) -> None:
        """Stop here if enough was observed; otherwise begin `phase`."""
        if self.is_stopped:
            raise StopJob
        if self._enough_at is not None:
            assert self._limits is not None
            budget_s = self._limits.budget_s
            is_late = budget_s is not None and time.monotonic() - self._enough_at > budget_s
            is_seen = self._limits.until == "evaluation" and self._evaluated and phase == TRAINING
            if self._limits.until == "steps" or is_seen or is_late:
                if self.sampled is not None:
                    self._last_place = self.sampled.place + ", where the time ended (--budget-s)" * (is_late and not is_seen)
                self.is_stopped = True
                raise StopJob
        if phase is not None:
            self._enter(phase)
        self._tell()

    def _enter(self, phase: str) -> None:
        if self.spans[-1][1] != phase:
            self.spans.append((self.position(), phase))

    def _evaluates(self, known: _Loader, loader: Any) -> None:
        """Record that a data loader is about to give another batch of an evaluation."""
        if known.loop is None:
            known.loop = self.loops.begin(EVALUATION)
            with suppress(TypeError, NotImplementedError):
                known.loop.length = len(loader)
        self.loops.step_ends(known.loop)
        self.is_stopped |= self.loops.is_over

    def _tell(self) -> None:
        phase = self.spans[-1][1]
        if self._limits is None or phase == BUILD:
            return
        if phase == EVALUATION:
            progress.tell(Stage.EVALUATION, self.steps, self._limits.steps)
        elif self._enough_at is None or self._limits.until == "steps":
            progress.tell(Stage.STEPS, self.steps, self._limits.steps)
        else:
            progress.tell(Stage.REST, self.steps, None if self._limits.budget_s is None else int(self._limits.budget_s))


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]


def _described(optimizer: Any) -> str:
    n = sum(p.numel() for p in _parameters(optimizer))
    return f"{type(optimizer).__name__} ({n:,} parameters)"
