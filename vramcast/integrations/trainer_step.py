"""A trainer's step: its description for the engine, and the modules that repeat it in the worker."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from vramcast.core.errors import CannotEstimate
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.first_batch import largest_batch
from vramcast.estimates.result import Estimate
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.program.variations import step_less

_MOST_MICRO_BATCHES = 2  # spec: gradients join the activations at the second micro-batch; more add nothing


@dataclass(frozen=True)
class TrainerStep:
    """A step: the batches of `loader`, the `model`, and what builds the worker's module and optimizer."""

    loader: Any
    batch_size: int
    accumulation: int
    model: Any
    build: Callable[[Any], Any]
    optimizer: Callable[[list[torch.nn.Parameter]], Any]
    max_norm: float | None = None
    takes_one_argument: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def estimate(self, estimator: Estimator, batch_size: int) -> Estimate:
        """Return the estimate with the largest batch of a size that the collator makes, the global batch kept."""
        if hasattr(self.model, torch_api.COMPILED_FROM):
            raise CannotEstimate("a compiled model is not estimated here: run vramcast run -- COMMAND")
        every = min(self.accumulation * self.batch_size // batch_size, _MOST_MICRO_BATCHES)
        batch = largest_batch(self.loader, batch_size)
        optimizer = functools.partial(_every, self.optimizer, every, self.max_norm)
        with _unprepared(self.model):
            return estimator.estimate(
                functools.partial(self.build, self.model), (batch,) if self.takes_one_argument else batch, optimizer=optimizer,
                steps=3 if every == 1 else 2 * every, **self.options,
            )  # fmt: skip


@contextmanager
def _unprepared(model: Any) -> Iterator[None]:
    """Take accelerate's autocast off a model while it is pickled, which that refuses."""
    kept = torch_api.UNPREPARED_FORWARD
    prepared = {name: vars(model).pop(name) for name in ("forward", kept) if kept in vars(model)}
    original = prepared.get(kept)
    if getattr(original, "__func__", None) is not getattr(type(model), "forward", None):
        vars(model).update({"forward": original} if prepared else {})  # replaced by others before
    try:
        yield
    finally:
        vars(model).update(prepared)


def _every(make: Any, every: int, max_norm: float | None, parameters: list[torch.nn.Parameter]) -> Any:
    """Return an optimizer that clips, steps and deletes gradients after `every` micro-batches."""
    optimizer = make(parameters)
    step = optimizer.step

    def clip_and_step(*arguments: Any, **options: Any) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm or 0.0)
        step(*arguments, **options)

    optimizer.step = clip_and_step if max_norm else step
    step_less(optimizer, every)
    return optimizer


# ------------------------------------------------------------------------------------------------ in the worker
def with_fp32_outputs(model: Any, is_autocast: bool) -> Any:
    """Return a model as accelerate prepares it: under autocast, its outputs are copied to float32."""
    if is_autocast:
        from accelerate.utils import convert_outputs_to_fp32

        model.forward = convert_outputs_to_fp32(model.forward)
    return model


class TrainerModule(torch.nn.Module):
    """The loss of a transformers Trainer, or of a subclass, from a copy without its data, and the other models it holds."""

    def __init__(self, trainer: Any, others: dict[str, Any], is_autocast: bool, model: Any) -> None:
        from accelerate import Accelerator

        super().__init__()
        self.model, self.others = with_fp32_outputs(model, is_autocast), torch.nn.ModuleDict(others)
        vars(trainer).update(accelerator=Accelerator(), model=model, model_wrapped=model, **others)
        self._trainer = trainer

    def gradient_checkpointing_enable(self) -> None:
        """Checkpoint the model as the trainer's arguments say."""
        self.model.gradient_checkpointing_enable(self._trainer.args.gradient_checkpointing_kwargs)

    def forward(self, inputs: Any) -> SimpleNamespace:
        """Return the trainer's loss."""
        return SimpleNamespace(loss=self._trainer.compute_loss(self.model, inputs))


class LightningStep(torch.nn.Module):
    """The training step of a LightningModule."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> SimpleNamespace:
        """Return the loss of a batch."""
        batch, step = self.module.on_after_batch_transfer(batch, 0), self.module.training_step
        found = step(batch, 0) if len(inspect.signature(step).parameters) > 1 else step(batch)
        return SimpleNamespace(loss=found["loss"] if isinstance(found, dict) else found)
