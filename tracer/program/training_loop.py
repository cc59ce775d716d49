"""The course of a training command: its steps, its phases, and the point where enough was observed.

    build -> training -> evaluation -> checkpoint -> training ...

A step is a training step: an optimizer has stepped after a backward pass. So a library that steps its optimizer once for
each group of parameters makes one step, and a job with two optimizers has made a step when both have.

After the last wanted step, a command is followed through its next evaluation; data loaders then end early, so that an epoch
ends. The command is stopped at a safe place: before the next forward or backward pass, or before the next batch.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core import progress
from vramcast.core.progress import Stage
from vramcast.jobs.job import Until
from vramcast.tracer.program.evaluations import CUT_SHORT, evaluates_within, may_evaluate
from vramcast.tracer.program.loops import EVALUATION, TRAINING, Loop, Loops
from vramcast.tracer.program.steadiness import Steadiness, next_change
from vramcast.tracer.protocol.run_options import LoopWatch

BUILD, CHECKPOINT = "build", "checkpoint"
PHASES: Final = (BUILD, TRAINING, EVALUATION, CHECKPOINT)
_BATCHES: Final = 3  # arbitrary: batches of a data loader that is cut; the second meets memory left by the first
_PATIENCE: Final = 10  # arbitrary: multiple of the wanted steps that one optimizer makes while another makes none
_MARGIN: Final = 2  # arbitrary: steps may become that much faster


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
    is_late: bool  # it began after the last wanted step
    trained: tuple[int, int]  # steps and backward passes before it began
    batches: int = 0
    loop: Loop | None = None  # a loop without training


@dataclass(frozen=True, slots=True)
class Limits:
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
    def of_watch(cls, watch: LoopWatch, steps: int) -> Limits:
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
        totals: See `Steadiness`; None: the steps are not compared.

    Attributes:
        loops: The job's observed loops.
        spans: (place in the history, phase) where each phase begins.
        counts: For each phase: its number of occurrences; forward passes of an evaluation, files written.
        in_backward: Number of running backward passes, nested in each other.
        is_stopped: Whether the job was stopped, because enough was observed or from outside.
        stopped_by: The reason for a stop from outside, in words.
    """

    def __init__(
        self, limits: Limits | None, position: Callable[[], int], watch: LoopWatch | None = None,
        totals: Callable[[], tuple[int, int, int, int]] | None = None,
    ) -> None:  # fmt: skip
        self.loops = Loops(position, watch)
        self.spans: list[tuple[int, str]] = [(0, BUILD)]
        self.counts = dict.fromkeys(PHASES, 0)
        self._limits = limits
        self._position = position
        self._main = threading.get_ident()
        self._optimizers: dict[int, _Optimizer] = {}
        self._backwards = 0
        self.in_backward = 0
        self._by_hand = self._by_hand_at = 0  # steps of a job without an optimizer, and the last one's backward pass
        self._loaders: weakref.WeakKeyDictionary[Any, _Loader] = weakref.WeakKeyDictionary()
        self._endless: weakref.WeakSet[Any] = weakref.WeakSet()
        self._enough_at: float | None = None
        self._evaluated = False  # after a step
        self._may_evaluate = True
        self._evaluates_within = False  # in the loops that train, under a condition
        self._is_shortened = False  # a pass over the training data was ended early
        has_end = limits is not None and limits.until == "evaluation" and limits.budget_s is not None
        self._steadiness = Steadiness(totals) if totals is not None and has_end else None
        self._compares_passes = False  # over the data, in place of steps: they are cut short, so their lengths say nothing
        self._is_steady = False
        self._is_cut = False  # the budget ended inside an evaluation
        self.stopped_by = ""
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
        self.steps_now(optimizer)
        self._count(self._optimizers[id(optimizer)])

    def _count(self, known: _Optimizer) -> None:
        backwards = self._backwards + bool(self.in_backward)  # an optimizer may step inside the backward pass
        before = self.steps
        if backwards > known.after_backward:
            self._look_at_source()
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
        trains = any(parameter.requires_grad for parameter in module.parameters())
        if trains and has_grad:
            self._steps_unseen()
            self._step_by_hand()
            if not self._backwards:  # perhaps there never will be one
                self._passes()
            self._boundary(TRAINING)
        elif trains and not module.training:
            self._passes()
            self._boundary(EVALUATION)
            self.counts[EVALUATION] += 1
            self._evaluated |= self.steps > 0
        else:
            if not self._backwards:  # a job with inference only
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
        self.in_backward += 1
        try:
            yield
        finally:
            self.in_backward -= 1
            self._backwards += not self.in_backward

    def begins(self, loader: Any) -> None:
        """Record that a pass over the data begins again, by the same iterator of a data loader."""
        self._loaders.pop(loader, None)

    def never_ends(self, loader: Any) -> None:
        """Record that an iterator of a data loader has no end, and that its reader may count on it: it is not cut."""
        self._endless.add(loader)

    def gives(self, loader: Any, *, has_grad: bool) -> bool:
        """Return whether an iterator of a data loader shall give another batch; otherwise its pass over the data ends
        there.

        Args:
            loader: The iterator.
            has_grad: Whether autograd is on; while it is off, nothing is trained.
        """
        if self._limits is None or threading.get_ident() != self._main:
            return True
        is_late = self._enough_at is not None
        if loader not in self._loaders:
            self._loaders[loader] = _Loader(is_late, (self.steps, self._backwards))
        known = self._loaders[loader]
        self._boundary(None)
        if self._limits.until == "steps" or loader in self._endless:
            return True
        if (known.is_late or not has_grad) and known.trained == (self.steps, self._backwards):
            self._evaluates(known, loader)
        most = self.loops.batches(known.loop, _BATCHES)
        limit = most if known.is_late or not has_grad else 0 if is_late else None
        if limit is not None and known.batches >= limit:
            if known.loop is not None:
                known.loop.is_cut = True
            self._is_shortened |= not limit
            return False
        known.batches += 1
        self._compares_passes = True
        if known.batches == 1 and known.is_late and self._steadiness is not None:
            self._is_steady |= self._steadiness.step()
        return True

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

    def facts(self, phases: Sequence[tuple[int, str]], *, is_whole: bool, ended: str) -> dict[str, Any]:
        """Return the facts about the course for a trace's header, as JSON.

        Args:
            phases: (row, phase) where each begins in the trace.
            is_whole: Whether the job ran to its own end.
            ended: The reason for an earlier end, in words, unless we ended it.
        """
        counts = {**self.counts, TRAINING: self.steps}
        missing = self._left_out() if is_whole else self.not_reached()
        return {"phases": [[*span] for span in phases], "counts": counts, "not_reached": missing, "ended": ended}

    def not_reached(self) -> list[str]:
        """Return the parts of a stopped job that were not observed, in words."""
        missing = ["the rest of the evaluation"] if self._is_cut else []
        if not self._evaluated and self._may_evaluate:
            missing = ["evaluation"]
        return missing + [f"a step of {_described(optimizer)}" for optimizer in self._idle()]

    def _left_out(self) -> list[str]:
        """Return the parts that a job did not reach because its pass over the training data was ended early, in words."""
        return [CUT_SHORT] if self._is_shortened and self._evaluates_within and not self._evaluated else []

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
            if self._backwards > known.after_backward and known.changes > before:
                self._count(known)

    def _look_at_source(self) -> None:
        """Determine at the first step, from the caller's frames, whether there can be an evaluation."""
        if not self.steps:
            self._may_evaluate = may_evaluate(sys._getframe(1))
            self._evaluates_within = evaluates_within(sys._getframe(1))

    def _step_by_hand(self) -> None:
        """Count a step of a job without an optimizer: a backward pass, and then another forward pass."""
        if self._backwards > self._by_hand_at and not any(known.reference() for known in self._optimizers.values()):
            self._look_at_source()
            self._by_hand += 1
            self._by_hand_at = self._backwards
            self._step_ended()
            self._look_whether_enough()

    def _step_ended(self) -> None:
        self.loops.trained()
        self.is_stopped |= self.loops.is_over and self.is_limited
        if self._steadiness is not None and not self._compares_passes:
            self._is_steady = self._steadiness.step()
        if self._is_steady and self._enough_at is not None:
            self.is_stopped |= self._goes_on_alike(time.monotonic() - self._enough_at)
            self._is_steady = False

    def _goes_on_alike(self, spent_s: float) -> bool:
        """Return whether the budget, of which some is spent, ends before the loops of the training can do anything new."""
        if self._limits is None or self._limits.budget_s is None:
            return False
        left = next_change(sys._getframe(1), self.steps, is_cut=self._compares_passes)
        step_s = spent_s / max(self.steps - self._limits.steps, 1)
        return left is not None and left * step_s > _MARGIN * (self._limits.budget_s - spent_s)

    def _passes(self) -> None:
        """Record a forward pass without training."""
        self.loops.passes(goes_on=self.spans[-1][1] == EVALUATION or not self._backwards)
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
                self._is_cut = is_late and self.spans[-1][1] == EVALUATION
                self.is_stopped = True
                raise StopJob
        if phase is not None:
            self._enter(phase)
        self._tell()

    def _enter(self, phase: str) -> None:
        if self.spans[-1][1] != phase:
            self.spans.append((self._position(), phase))

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
        if self._limits is not None and phase != BUILD:
            progress.tell(Stage.EVALUATION if phase == EVALUATION else Stage.STEPS, self.steps, self._limits.steps)


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]


def _described(optimizer: Any) -> str:
    n = sum(p.numel() for p in _parameters(optimizer))
    return f"{type(optimizer).__name__} ({n:,} parameters)"
