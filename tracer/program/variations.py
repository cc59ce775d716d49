"""Two changes of a job that need code: checkpointing of some blocks, and accumulation of two batches per step.

Each returns the job with a callable in it, pickled by name, so that the caller needs no torch: the job's process calls it.

    checkpoint_blocks(job, ["layer1.0", "layer1.1"])    torch.utils.checkpoint around these modules' forward
    accumulate(job)                                     the optimizer steps, and drops gradients, after every second batch
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramcast.jobs.job import Job

if TYPE_CHECKING:
    import torch

_BATCHES = 2  # arbitrary: the smallest number that halves the batch


def checkpoint_blocks(job: Job, blocks: Sequence[str]) -> Job:
    """Return the job with gradient checkpointing (not reentrant) around the modules at these paths."""
    return replace(job, target=None, model=pickle.dumps(functools.partial(_checkpointed, job, tuple(blocks))))


def accumulate(job: Job) -> Job:
    """Return the job with twice the batches, two for each step; the caller chooses their size.

    Limit: with a GradScaler, gradients are unscaled after every batch and not after every second, which moves no memory.
    """
    optimizer = functools.partial(_accumulating, replace(job, model=None, batch=None, labels=None, loss=None))
    return job.with_training(optimizer=pickle.dumps(optimizer), steps=_BATCHES * job.training.steps)


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


def _accumulating(job: Job, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    from vramcast.tracer.program.model_program import build_optimizer

    optimizer = build_optimizer(job, parameters)
    # For every two batches, gradients are dropped before the first, or after the second.
    optimizer.step = _every_second(optimizer.step, at=_BATCHES - 1)  # type: ignore[method-assign]
    drops_at = _BATCHES - 1 if job.training.zero_grad == "after-step" else 0
    optimizer.zero_grad = _every_second(optimizer.zero_grad, at=drops_at)  # type: ignore[method-assign]
    return optimizer


def _every_second(function: Any, at: int) -> Any:
    """Return a function that calls `function` every second time: the first (`at` is 0) or the second (1) of two calls."""
    calls = 0

    @functools.wraps(function)
    def called() -> None:
        nonlocal calls
        if calls % _BATCHES == at:
            function()
        calls += 1

    return called
