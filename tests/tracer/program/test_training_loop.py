"""The course of a training command: its steps, its cuts, and its stop."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vramcast.tracer.program.training_loop import Course, LoopLimits, StopJob
from vramcast.tracer.protocol.run_options import LoopWatch


class Job:
    """A job in few calls, with its parameters on the card."""

    def __init__(
        self, limits: LoopLimits | None, watch: LoopWatch | None = None,
        totals: Callable[[], tuple[int, int, int, int]] | None = None,
    ) -> None:  # fmt: skip
        self.at = 0
        self.course = Course(limits, lambda: self.at, watch, totals)

    def optimizer(self, n_parameters: int = 1) -> Any:
        parameter = _Parameter(n_parameters)
        made = _Optimizer([{"params": [parameter]}])
        self.course.exists(made)
        return made

    def train(self, *optimizers: Any, calls: int = 1, times: int = 1) -> None:
        for _ in range(times):
            self.at += 1
            self.course.forward(MODEL, has_grad=True)
            with self.course.backward():
                pass
            for optimizer in optimizers:
                for _ in range(calls):
                    self.course.stepped(optimizer)

    def evaluate(self) -> None:
        self.at += 1
        self.course.forward(SimpleNamespace(parameters=MODEL.parameters, training=False), has_grad=False)


class _Parameter:
    def __init__(self, n: int) -> None:
        self._n, self.is_cuda, self.requires_grad, self._version = n, True, True, 0

    def numel(self) -> int:
        return self._n


class _Optimizer:
    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.param_groups = groups


class _Iterator:
    def __init__(self, n: int = 400) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n


MODEL: Any = SimpleNamespace(parameters=lambda: [_Parameter(1)], training=True)


def test_groups_stepping_in_turn_make_one_step() -> None:
    job = Job(LoopLimits(steps=3))
    optimizer = job.optimizer()
    job.train(optimizer, calls=4)
    job.train(optimizer, calls=4)
    assert job.course.steps == 2
    with pytest.raises(StopJob):  # at the last of its calls, not at the first
        job.train(optimizer, calls=5)
    assert job.course.steps == 3


def test_follows_first_step_to_the_next() -> None:
    job = Job(LoopLimits(steps=1))
    optimizer = job.optimizer()
    job.train(optimizer, calls=7)
    with pytest.raises(StopJob):
        job.train(optimizer)
    assert job.course.steps == 1


def test_step_without_backward_does_not_count() -> None:
    job = Job(LoopLimits(steps=1))
    job.course.stepped(job.optimizer())
    assert job.course.steps == 0


def test_waits_for_rarely_stepping_optimizer() -> None:
    job = Job(LoopLimits(steps=2))
    critic, generator = job.optimizer(), job.optimizer(134)
    for _ in range(2):
        for _ in range(5):
            job.train(critic)
        if job.course.steps == 10:
            break
        job.train(generator)
    with pytest.raises(StopJob):
        job.train(generator)
    assert job.course.steps == 10


def test_names_optimizer_that_never_steps() -> None:
    job = Job(LoopLimits(steps=2))
    optimizer, idle = job.optimizer(), job.optimizer(1234)
    with pytest.raises(StopJob):
        job.train(optimizer, times=100)
    assert job.course.steps == 20
    assert "a step of _Optimizer (1,234 parameters)" in job.course.not_reached()
    assert idle.param_groups


def test_does_not_wait_for_duplicate_optimizer() -> None:
    job = Job(LoopLimits(steps=2))
    optimizer = job.optimizer()
    wrapped = _Optimizer(optimizer.param_groups)
    job.course.exists(wrapped)
    with pytest.raises(StopJob):
        job.train(optimizer, times=100)
    assert job.course.steps == 2


def test_unseen_step_changes_parameter() -> None:
    job = Job(LoopLimits(steps=3))
    optimizer = job.optimizer()
    parameter = optimizer.param_groups[0]["params"][0]
    for _ in range(3):
        job.train()
        parameter._version += 1  # by compiled code
    with pytest.raises(StopJob):
        job.train()
    assert job.course.steps == 3


def test_passes_inside_step_are_one_step() -> None:
    job = Job(None)
    optimizer = job.optimizer()
    for number in range(2):
        job.course.steps_now(optimizer)
        for _ in range(20):
            job.train()
            optimizer.param_groups[0]["params"][0]._version += 1
        job.course.stepped(optimizer)
        assert job.course.steps == number + 1


def test_counts_backward_passes_without_optimizer() -> None:
    job = Job(LoopLimits(steps=3))
    with pytest.raises(StopJob):
        job.train(times=100)
    assert job.course.steps == 3


def test_evaluation_after_steps_belongs_to_run() -> None:
    job = Job(LoopLimits(steps=2, until="evaluation"))
    optimizer = job.optimizer()
    job.evaluate()  # before any step: it differs from the one with the optimizer's state
    for _ in range(4):
        job.train(optimizer)
    job.evaluate()
    with job.course.saving():
        job.at += 1
    with pytest.raises(StopJob):
        job.train(optimizer)
    assert job.course.not_reached() == ["what follows the last step"]
    assert [name for _, name in job.course.spans] == [
        "build",
        "evaluation",
        "training",
        "evaluation",
        "checkpoint",
        "evaluation",
    ]
    assert job.course.counts == {"build": 0, "training": 0, "evaluation": 2, "checkpoint": 1}


def test_budget_ends_job_without_evaluation() -> None:
    job = Job(LoopLimits(steps=2, until="evaluation", budget_s=0.0))
    optimizer = job.optimizer()
    with pytest.raises(StopJob):
        job.train(optimizer, times=4)
    assert (job.course.steps, job.course.not_reached()) == (2, ["what follows the last step"])


def test_stopped_job_stays_stopped() -> None:
    job = Job(None)
    job.course.stop("enough")
    for _ in range(2):
        with pytest.raises(StopJob):  # even if the script has caught the first one
            job.evaluate()


def test_external_stop_waits_for_bookkeeping() -> None:
    course = Job(None).course
    done = []

    def drain() -> None:
        with course.ours():
            course.stop_at_once("its user stopped it")
            done.append("what follows the stop")

    with pytest.raises(StopJob):
        drain()
    assert (done, course.stopped_by) == (["what follows the stop"], "its user stopped it")
    with pytest.raises(StopJob):
        course.stop_at_once("late")


def test_late_pass_with_accumulated_gradients_is_no_evaluation() -> None:
    job = Job(LoopLimits(steps=1, until="evaluation"))
    optimizer, loader = job.optimizer(), _Iterator()
    job.train(optimizer)
    for _ in range(3):
        job.course.gives(loader, has_grad=True)
        job.train()  # a backward pass without a step
    assert job.course.loops.facts(lambda at: at, is_whole=False) == []


def test_loader_without_gradients_is_an_evaluation() -> None:
    job = Job(LoopLimits(steps=9, until="evaluation"))
    loader = _Iterator(400)
    for _ in range(4):
        job.course.gives(loader, has_grad=False)
    loop = job.course.loops.all[0]
    assert (loop.phase, len(loop.ends), loop.length, loop.is_cut) == ("evaluation", 4, 400, False)
    job.course.ends(loader)  # persistent workers have one iterator for all passes
    job.course.gives(loader, has_grad=False)
    assert len(job.course.loops.all) == 2


def test_watched_loader_ends_the_job_after_wanted_batches() -> None:
    job = Job(LoopLimits(steps=9, until="evaluation"), watch=LoopWatch(0, is_training=False, steps=40))
    loader = _Iterator(400)
    for _ in range(40):
        job.course.gives(loader, has_grad=False)
    with pytest.raises(StopJob):
        job.course.gives(loader, has_grad=False)


def test_each_training_step_ends_once() -> None:
    job = Job(LoopLimits(steps=100))
    generator, discriminator = job.optimizer(), job.optimizer()
    job.train(generator, discriminator, times=5)
    (loop,) = job.course.loops.facts(lambda at: at, is_whole=False)
    assert (loop["phase"], loop["ends"], loop["is_open"]) == ("training", [1, 2, 3, 4, 5], True)


def test_watched_training_ends_at_wanted_step() -> None:
    watch = LoopWatch(1, is_training=True, steps=33)
    job = Job(LoopLimits.of_watch(watch, 3), watch=watch)
    optimizer = job.optimizer()
    with pytest.raises(StopJob):
        job.train(optimizer, times=50)
    assert job.course.steps == 33


def test_forward_passes_without_training_are_loops() -> None:
    job = Job(LoopLimits(steps=100))
    optimizer = job.optimizer()
    for _ in range(2):
        job.train(optimizer)
        for _ in range(3):
            job.evaluate()
    loops = job.course.loops.facts(lambda at: at, is_whole=True)
    assert [(one["phase"], len(one["ends"]), one["is_open"]) for one in loops] == [
        ("training", 2, False),
        ("evaluation", 3, False),
        ("evaluation", 3, False),
    ]


def test_model_job_is_never_stopped_nor_cut() -> None:
    job = Job(None)
    optimizer, loader = job.optimizer(), _Iterator()
    for _ in range(50):
        job.train(optimizer)
        job.evaluate()
        job.course.gives(loader, has_grad=False)
    assert job.course.steps == 50
