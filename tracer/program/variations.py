"""Two changes of a job that need code: checkpointing of some blocks, and accumulation of several batches per step.

Each returns the job with a callable in it, pickled by name, so that the caller needs no torch: the job's process calls it.

    checkpoint_blocks(job, ["layer1.0", "layer1.1"])    torch.utils.checkpoint around these modules' forward
    accumulate(job)                                     the optimizer steps, and drops gradients, after every second batch
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramcast.jobs.job import Job

if TYPE_CHECKING:
    import torch


def checkpoint_blocks(job: Job, blocks: Sequence[str]) -> Job:
    """Return the job with gradient checkpointing (not reentrant) around the modules at these paths."""
    return replace(job, target=None, model=pickle.dumps(functools.partial(_checkpointed, job, tuple(blocks))))


def accumulate(job: Job, batches: int = 2) -> Job:
    """Return the job with that many batches for each step; the caller chooses their size.

    Limit: with a GradScaler, gradients are unscaled after every batch, which moves no memory.
    """
    optimizer = functools.partial(_accumulating, replace(job, model=None, batch=None, labels=None, loss=None), batches)
    return job.with_training(optimizer=pickle.dumps(optimizer), steps=batches * job.training.steps)


def _checkpointed(job: Job, blocks: tuple[str, ...]) -> torch.nn.Module:
    from vramcast.tracer.program.model_program import build_model

    model = build_model(job)
    for path in blocks:
        recompute(model.get_submodule(path))
    return model


def recompute(block: torch.nn.Module) -> None:
    """Put torch.utils.checkpoint around a module's forward pass."""
    from torch.utils.checkpoint import checkpoint

    # On the instance, so that the module's hooks still run around it and its path stays the same.
    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def _accumulating(job: Job, batches: int, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    from vramcast.tracer.program.model_program import build_optimizer

    optimizer = build_optimizer(job, parameters)
    step_less(optimizer, batches)
    return optimizer


def step_less(optimizer: torch.optim.Optimizer, batches: int) -> None:
    """Let one of `batches` calls of `step` count, and those of `zero_grad` until the next call of `step`."""
    calls = 0

    def counted(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return run(*args, **kwargs) if calls % batches == 0 else None

        return step

    def after_step(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def zero_grad(*args: Any, **kwargs: Any) -> None:
            if calls % batches == 0:
                run(*args, **kwargs)

        return zero_grad

    optimizer.step = counted(optimizer.step)  # type: ignore[method-assign]
    optimizer.zero_grad = after_step(optimizer.zero_grad)  # type: ignore[method-assign]
