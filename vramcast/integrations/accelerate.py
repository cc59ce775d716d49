"""The same for a loop of your own with accelerate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator

from vramcast.core.errors import CannotEstimate
from vramcast.estimates.remade_optimizer import remade
from vramcast.integrations.memory_watch import MemoryWatch
from vramcast.integrations.trainer_step import TrainerStep, with_fp32_outputs


@contextmanager
def watched(
    accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, *, loss: Callable[..., Any] | None = None,
    max_norm: float | None = None, log_every: int = 100, **options: Any,
) -> Iterator[MemoryWatch]:  # fmt: skip
    """Watch a training loop, which is the block of `with`: the same as the callbacks do.

    Args:
        accelerator: Gets the peaks for its trackers; `resize` sets its `gradient_accumulation_steps`.
        model: The model, prepared or not; so are the optimizer and the loader.
        optimizer: Its optimizer.
        loader: The data loader, whose batch `resize` changes in place.
        loss: As for `vramcast.estimate`.
        max_norm: Norm to which the loop clips gradients.
        log_every: Steps of the optimizer from one log to the next.
        options: The arguments of `MemoryWatch`; by default, its row goes to the accelerator's project folder.

    Raises:
        DoesNotFit: The job does not fit, and `when_too_large` asks for the error.

    Example:
        >>> with watched(accelerator, model, optimizer, loader, on="a100-40gb", when_too_large="raise"):
        ...     train()
    """
    watch, steps = MemoryWatch(**options), 0
    plain, base = accelerator.unwrap_model(model), getattr(optimizer, "optimizer", optimizer)
    sampler: Any = getattr(loader, "batch_sampler", None)
    sampler = getattr(sampler, "batch_sampler", sampler)  # accelerate wraps it

    def describe() -> TrainerStep:
        size = getattr(sampler, "batch_size", None)
        if accelerator.num_processes > 1 or size is None:
            raise CannotEstimate("only one card and a DataLoader with a batch_size are estimated here: run vramcast run")
        precision = {"no": "fp32", "bf16": "amp-bf16", "fp16": "amp-fp16"}[accelerator.mixed_precision]
        return TrainerStep(
            loader, size, accelerator.gradient_accumulation_steps, plain,
            functools.partial(with_fp32_outputs, is_autocast=precision != "fp32"), remade(base, plain), max_norm, False,
            options={"precision": precision, "loss": loss, "zero_grad": "after-step"},
        )  # fmt: skip

    def resize(batch_size: int, accumulation: int) -> None:
        sampler.batch_size, accelerator.gradient_accumulation_steps = batch_size, accumulation

    def count_step(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps % log_every == 0:
            accelerator.log(watch.values(), step=steps)

    watch.ask(describe, resize)
    watch.begin(plain, accelerator.project_dir or ".", optimizer=type(base).__name__)
    counting = base.register_step_post_hook(count_step)
    try:
        yield watch
    except Exception as error:
        watch.end(error, steps=steps)
        raise
    finally:
        counting.remove()
    watch.end(steps=steps)
