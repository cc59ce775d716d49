"""The callback of transformers' Trainer and of TRL's trainers."""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any, Final

import torch
from transformers import Trainer, TrainerCallback

from vramcast.core.errors import CannotEstimate
from vramcast.estimates.remade_optimizer import remade
from vramcast.integrations.memory_watch import MemoryWatch
from vramcast.integrations.trainer_step import TrainerModule, TrainerStep

# What a loss does not read; `train` is ours.
_LEFT_OUT: Final = (
    *("train", "train_dataset", "eval_dataset", "data_collator", "callback_handler", "optimizer", "lr_scheduler"),
    *("accelerator", "model_init", "compute_metrics", "preprocess_logits_for_metrics", "model", "model_wrapped"),
)  # fmt: skip


class TransformersCallback(MemoryWatch, TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Answers before the first step, logs predicted beside measured peaks, and records the run; see `MemoryWatch`.

    Pass it in `callbacks` of the Trainer: only then does it see the error that ends a training, and can resize the batch.

    Example:
        >>> callback = VramcastCallback("runs/", on="a100-40gb", when_too_large="resize")
    """

    _asked_of: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Surround the trainer's `train`: there is no event before its loaders are made, and none for an error."""
        trainer = self._asked_of = _trainer_of(args)
        train = trainer.train

        def watched_train(*positional: Any, **named: Any) -> Any:
            self.ask(functools.partial(_step_of, trainer), functools.partial(_resize, trainer))
            try:
                return train(*positional, **named)
            except Exception as error:
                self.end(error, steps=trainer.state.global_step)
                raise

        trainer.train = watched_train

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask, if the callback came too late for `on_init_end`, and begin to measure."""
        if (trainer := _trainer_of(args)) is not self._asked_of:
            self.ask(functools.partial(_step_of, trainer))
        if state.is_world_process_zero:
            self.begin(
                kwargs["model"], args.output_dir, batch_size=args.per_device_train_batch_size, precision=_autocast_of(args),
                optimizer=str(getattr(args.optim, "value", args.optim)), checkpointing=bool(args.gradient_checkpointing),
            )  # fmt: skip

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Log the peaks beside each loss."""
        if state.is_world_process_zero and "loss" in (logs or {}) and (values := self.values()):
            Trainer.log(_trainer_of(args), {**values})  # not a subclass's, which may add its metrics of the step and clear them

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the run."""
        self.end(steps=state.global_step)


VramcastCallback = TransformersCallback


def _trainer_of(args: Any) -> Any:
    """Return the trainer that sent an event: callbacks get everything but the trainer, which is in a frame above."""
    frame = sys._getframe(1)
    while not (isinstance(found := frame.f_locals.get("self"), Trainer) and found.args is args):
        if frame.f_back is None:
            raise CannotEstimate("the event was not sent by a transformers Trainer")
        frame = frame.f_back
    return found


def _autocast_of(args: Any) -> Any:
    return "amp-bf16" if args.bf16 else "amp-fp16" if args.fp16 else None


def _step_of(trainer: Any) -> TrainerStep:
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    if args.world_size > 1 or args.n_gpu > 1 or trainer.is_deepspeed_enabled:
        raise CannotEstimate("several cards are not estimated here: run vramcast run -- COMMAND")
    kept = {name: value for name, value in vars(trainer).items() if name not in _LEFT_OUT}
    others = {name: value for name, value in kept.items() if isinstance(value, torch.nn.Module)}
    copied, autocast = copy.copy(trainer), _autocast_of(args)
    copied.__dict__ = {name: value for name, value in kept.items() if name not in others}
    build = functools.partial(TrainerModule, copied, others, autocast is not None)
    options = {"precision": autocast or "fp32", "checkpointing": bool(args.gradient_checkpointing), "zero_grad": "after-step"}
    return TrainerStep(
        trainer.get_train_dataloader(), args.per_device_train_batch_size, args.gradient_accumulation_steps, model, build,
        _optimizer_of(trainer, model), args.max_grad_norm, options=options,
    )  # fmt: skip


def _optimizer_of(trainer: Any, model: Any) -> Any:
    """Return what makes the trainer's optimizer in the worker; the trainer makes its own later."""
    before = trainer.optimizer
    if before is None and type(trainer).create_optimizer is Trainer.create_optimizer:
        kind, options = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and not {"params", "model"} & options.keys():
            return functools.partial(kind, **options)
    made = before or trainer.create_optimizer()
    trainer.optimizer = before
    return remade(getattr(made, "optimizer", made), model)


def _resize(trainer: Any, batch_size: int, accumulation: int) -> None:
    trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps = batch_size, accumulation
    trainer._train_batch_size = trainer.args.train_batch_size
