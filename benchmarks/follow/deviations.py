"""Steps that do something else than the planned ones: each function changes a job, and returns its step.

The follower's rules were chosen with `TRIAL`, and changed once more with `OURS` in view; `FRESH` was written after that.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any, Final

import torch
from jobs import Batch, Job

Step = Callable[[], None]


class _Raised(Exception):
    pass


def _numbered(job: Job, step: Callable[[int], None]) -> Step:
    def one() -> None:
        job.n_steps += 1
        step(job.n_steps - 1)

    return one


def _train(job: Job, batch: Batch | None = None) -> None:
    job.gradients(*(batch or job.batch()))
    job.optimizer.step()


def evaluates(job: Job) -> Step:
    """Evaluate after every second step."""

    def step(number: int) -> None:
        _train(job)
        if number % 2:
            job.evaluate()

    return _numbered(job, step)


def raises(job: Job) -> Step:
    """Leave every third step by an exception, half way."""
    is_third = False

    def stop(*_: Any) -> None:
        if is_third:
            raise _Raised

    modules = list(job.model.modules())
    modules[len(modules) // 2].register_forward_hook(stop)

    def step(number: int) -> None:
        nonlocal is_third
        is_third = number % 3 == 2
        with contextlib.suppress(_Raised):
            _train(job)

    return _numbered(job, step)


def smaller(job: Job) -> Step:
    """Make every third batch a smaller one."""

    def step(number: int) -> None:
        x, y = job.batch()
        _train(job, (x[:9], y[:9]) if number % 3 == 2 else (x, y))

    return _numbered(job, step)


def clips(job: Job) -> Step:
    """Clip gradients, and read the loss."""

    def step() -> None:
        loss = job.gradients(*job.batch())
        torch.nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)
        job.optimizer.step()
        loss.item()

    return step


def prefetches(job: Job) -> Step:
    """Copy batches on a stream of their own."""
    side = torch.cuda.Stream()

    def step() -> None:
        with torch.cuda.stream(side):
            batch = job.batch()
        torch.cuda.current_stream().wait_stream(side)
        for one in batch:
            one.record_stream(torch.cuda.current_stream())
        _train(job, batch)

    return step


def before(job: Job) -> Step:
    """Keep other tensors on the card."""
    job.kept = [torch.nn.Linear(2000, 2000).cuda(), *(torch.randn(300, 300, device="cuda") for _ in range(20))]
    return lambda: _train(job)


def _accumulated(job: Job, n: int) -> None:
    job.optimizer.zero_grad()
    for _ in range(n):
        (job.loss(*job.batch()) / n).backward()
    job.optimizer.step()


def accumulates(job: Job) -> Step:
    """Accumulate the gradients of two batches."""
    return lambda: _accumulated(job, 2)


def averages(job: Job) -> Step:
    """Keep an average of the parameters."""

    def step() -> None:
        _train(job)
        with torch.no_grad():
            job.kept = [one * 0.9 + 0.1 for one in job.model.parameters()]

    return step


def varies(job: Job) -> Step:
    """Accumulate one to three batches."""
    return _numbered(job, lambda number: _accumulated(job, 1 + number % 3))


def skips(job: Job) -> Step:
    """Leave out every third update, as after an overflow of half-precision gradients."""

    def step(number: int) -> None:
        job.gradients(*job.batch())
        if number % 3 != 1:
            job.optimizer.step()

    return _numbered(job, step)


def generates(job: Job) -> Step:
    """Run the model on growing inputs without gradients, after every second step."""

    def step(number: int) -> None:
        _train(job)
        if number % 2 == 0:
            return
        x, _ = job.batch()
        with torch.no_grad():
            for size in range(64, x.shape[-1] + 1, 32):
                job.run(x[..., :size] if x.dim() == 2 else x[..., :size, :size]).argmax(-1)

    return _numbered(job, step)


def keeps(job: Job) -> Step:
    """Keep the losses with their graphs until the next step, and the batch before it."""

    def step() -> None:
        x, y = job.batch()
        loss = job.gradients(x, y)
        job.optimizer.step()
        job.kept = [*job.kept[-2:], x, loss]

    return step


def perturbs(job: Job) -> Step:
    """Take the gradients again at perturbed parameters (sharpness-aware minimization)."""

    def step() -> None:
        batch = job.batch()
        job.gradients(*batch)
        parameters = [one for one in job.model.parameters() if one.grad is not None]
        with torch.no_grad():
            moved = [0.05 * one.grad for one in parameters if one.grad is not None]
            torch._foreach_add_(parameters, moved)
        job.gradients(*batch)
        with torch.no_grad():
            torch._foreach_sub_(parameters, moved)
        job.optimizer.step()

    return step


def distills(job: Job) -> Step:
    """Learn from a frozen copy of the model."""
    teacher = copy.deepcopy(job.model).requires_grad_(False)

    def step() -> None:
        x, _ = job.batch()
        with torch.no_grad():
            wanted = teacher(x).softmax(-1)
        loss = -(job.run(x).log_softmax(-1) * wanted).mean()
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()

    return step


def resumes(job: Job) -> Step:
    """Load the optimizer's state before the first step."""
    _train(job)
    job.optimizer.load_state_dict(copy.deepcopy(job.optimizer.state_dict()))
    return lambda: _train(job)


def unfreezes(job: Job) -> Step:
    """Train only the last parameters for four steps."""
    parameters = list(job.model.parameters())
    for one in parameters[:-4]:
        one.requires_grad_(False)

    def step(number: int) -> None:
        if number == 4:
            job.model.requires_grad_(True)
        _train(job)

    return _numbered(job, step)


def zeroes(job: Job) -> Step:
    """Keep the gradients' memory from step to step."""

    def step() -> None:
        loss = job.loss(*job.batch())
        job.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        job.optimizer.step()

    return step


def grows(job: Job) -> Step:
    """Take a quarter more samples from the fifth step on."""

    def step(number: int) -> None:
        x, y = job.batch()
        if number >= 4:
            more = len(x) // 4
            x, y = torch.cat([x, x[:more]]), torch.cat([y, y[:more]])
        _train(job, (x, y))

    return _numbered(job, step)


def augments(job: Job) -> Step:
    """Change each batch on the card, by operations that differ from step to step."""

    def step(number: int) -> None:
        x, y = job.batch()
        for k in range(number % 3):
            kept = torch.rand(x.shape, device="cuda") < 0.9
            x = torch.where(kept, x, x.flip(0) if k else x.roll(1, 0))
        _train(job, (x, y))

    return _numbered(job, step)


def autocasts(job: Job) -> Step:
    """Take every second step in bfloat16."""

    def step(number: int) -> None:
        job.amp = number % 2 == 1
        _train(job)

    return _numbered(job, step)


def drops(job: Job) -> Step:
    """Leave out other modules in each step (stochastic depth)."""
    layers = [one for one in job.model.modules() if type(one).__name__ in ("Block", "BasicBlock")]
    kept = [one.forward for one in layers]

    def step(number: int) -> None:
        for k, (layer, forward) in enumerate(zip(layers, kept, strict=True)):
            layer.forward = (lambda x: x) if number and k % 4 == number % 4 and k % 2 else forward
        _train(job)

    return _numbered(job, step)


def alternates(job: Job) -> Step:
    """Train a second model of the same kind in every second step."""
    second = copy.deepcopy(job)

    def step(number: int) -> None:
        one = second if number % 2 else job
        one.run = one.model
        _train(one, job.batch())

    return _numbered(job, step)


def goes_back_twice(job: Job) -> Step:
    """Take the gradients of a loss twice."""

    def step() -> None:
        loss = job.loss(*job.batch())
        job.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        loss.backward()
        job.optimizer.step()

    return step


def empties(job: Job) -> Step:
    """Empty the cache, and keep a large tensor, in every third step."""

    def step(number: int) -> None:
        job.kept = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda")] if number % 3 == 1 else []
        _train(job)
        torch.cuda.empty_cache()

    return _numbered(job, step)


TRIAL: Final = (evaluates, raises, smaller, clips, prefetches, before, accumulates, averages)
OURS: Final = (varies, skips, generates, keeps, perturbs, distills, resumes, unfreezes, zeroes, grows, augments)
FRESH: Final = (autocasts, drops, alternates, goes_back_twice, empties)
DEVIATIONS: Final[dict[str, Callable[[Job], Step]]] = {one.__name__: one for one in (*TRIAL, *OURS, *FRESH)}
