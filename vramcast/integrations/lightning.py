"""The callback of Lightning's Trainer, of `lightning.pytorch` or `pytorch_lightning`."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any, Final

from vramcast.core.errors import CannotEstimate
from vramcast.estimates.remade_optimizer import remade
from vramcast.integrations.memory_watch import MemoryWatch
from vramcast.integrations.trainer_step import LightningStep, TrainerStep

# A Trainer takes no callbacks of the other package.
_IS_OLD: Final = "pytorch_lightning" in sys.modules or importlib.util.find_spec("lightning") is None
lightning: Any = importlib.import_module("pytorch_lightning" if _IS_OLD else "lightning.pytorch")
_PRECISIONS: Final = {
    "32-true": "fp32", "bf16-mixed": "amp-bf16", "16-mixed": "amp-fp16", "bf16-true": "bf16", "16-true": "fp16",
}  # fmt: skip


class LightningCallback(MemoryWatch, lightning.Callback):  # type: ignore[misc,unused-ignore]
    """Answers before the first step, logs predicted beside measured peaks, and records the fit; see `MemoryWatch`.

    It resizes by `batch_size` of the module or its data module, as Lightning's own search does, or else that of the loader.

    Example:
        >>> callback = VramcastCallback("runs/", on="a100-40gb", when_too_large="raise")
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Ask, and begin to measure."""
        self.ask(functools.partial(_step_of, trainer, pl_module), functools.partial(_resize, trainer, pl_module))
        if trainer.is_global_zero:
            optimizer = type(trainer.optimizers[0]).__name__ if trainer.optimizers else None
            folder = getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir
            self.begin(pl_module, folder, optimizer=optimizer)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Log the peaks when Lightning logs a step."""
        if trainer.loggers and trainer.global_step % trainer.log_every_n_steps == 0 and trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics(self.values(), step=trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the fit."""
        self.end(steps=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Record the fit that raised."""
        self.end(exception, steps=trainer.global_step)


VramcastCallback = LightningCallback


def _step_of(trainer: Any, module: Any) -> TrainerStep:
    trainer.fit_loop.setup_data()
    loader, precision = trainer.train_dataloader, _PRECISIONS.get(trainer.precision)
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    is_usual = module.automatic_optimization and len(trainer.optimizers) == 1 and trainer.world_size == 1
    if not is_usual or precision is None or size is None:
        raise CannotEstimate(
            "only one card, one DataLoader with a batch_size, one optimizer that Lightning steps, and the precisions "
            f"{', '.join(_PRECISIONS)} are estimated here: run vramcast run -- COMMAND"
        )
    clip = trainer.gradient_clip_val if trainer.gradient_clip_algorithm in (None, "norm") else None
    return TrainerStep(
        loader, size, trainer.accumulate_grad_batches, module, LightningStep, remade(trainer.optimizers[0], module), clip,
        options={"precision": precision, "zero_grad": "before-backward"},
    )  # fmt: skip


def _resize(trainer: Any, module: Any, batch_size: int, accumulation: int) -> None:
    parsing = importlib.import_module(f"{lightning.__name__}.utilities.parsing")
    if parsing.lightning_hasattr(module, "batch_size"):
        parsing.lightning_setattr(module, "batch_size", batch_size)
    trainer.train_dataloader.batch_sampler.batch_size = batch_size
    trainer.fit_loop._combined_loader, trainer.accumulate_grad_batches = None, accumulation
    trainer.fit_loop.setup_data()
    if trainer.train_dataloader.batch_sampler.batch_size != batch_size:
        raise CannotEstimate("Lightning kept its batch: give the module or data module an attribute batch_size.")
