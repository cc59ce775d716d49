"""Trainer callbacks that record one row per run, from torch's counters after training, at no cost to the job.

    Trainer(..., callbacks=[hugging_face("runs/")])            # transformers
    Trainer(..., callbacks=[lightning("runs/")])               # lightning.pytorch or pytorch_lightning

With several cards, the row describes the first process; `gpus` stays 1, because its counters cover one card.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

from vramcast.core.errors import DatasetError
from vramcast.datasets.collector.counters import counters, stack
from vramcast.datasets.collector.nvml import COUNTERS_ONLY, Nvml, NvmlAbsent
from vramcast.datasets.journal import Journal
from vramcast.datasets.run import Measurement, Passport, Run, Status, Workload


class RunRecorder:
    """The common part of both callbacks: `begin()` before training, `end(...)` after it.

    Args:
        out: Folder of the data set; gets runs.jsonl.
        name: Name of the job; default: the program's file name.
    """

    def __init__(self, out: str | os.PathLike[str], name: str | None = None) -> None:
        self._path = Path(out) / "runs.jsonl"
        self._name = name or Path(sys.argv[0]).name or "python"
        self._started = 0.0
        self._workload: Workload | None = None

    def begin(self, model: Any, **workload: Any) -> None:
        """Reset the peaks, and record what the job is.

        Args:
            model: The module to train; only its structure is read.
            workload: Further fields of `Workload`.
        """
        import torch

        from vramcast.datasets.collector import model_facts

        self._workload = Workload(
            self._name,
            family="script",
            script=tuple(sys.argv),
            model_sha256=model_facts.model_sha256(model),
            features=model_facts.features(model),
            alloc_conf=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            gpus=1,
            **workload,
        )
        self._started = time.perf_counter()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        # Training that raises may never call `end`, and runs that ran out of memory are worth most to a learner.
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        ran_out = bool(counters().get("ooms"))
        self.end(status="oom" if ran_out else "unknown", message="the program ended before the training did")

    def end(self, *, status: Status = "ok", steps: int | None = None, message: str = "") -> None:
        """Append the run's row, once. A failed write is only a warning, so that the trained model is not lost.

        Args:
            status: As in `Measurement`.
            steps: Optimizer steps done.
            message: Message of the error that ended it.
        """
        if self._workload is None:
            return
        workload, self._workload = self._workload, None
        atexit.unregister(self._at_exit)
        process_bytes, how = _process_bytes()
        measurement = Measurement(
            status,
            process_bytes=process_bytes,
            censored=status != "ok",
            steps=steps,
            seconds=round(time.perf_counter() - self._started, 3),
            message=message[:500],
            **counters(message),
        )
        passport = Passport("vramcast callback", how=how, **stack())
        try:
            with Journal(self._path) as lines:
                lines.append(Run(f"callback-{uuid.uuid4().hex[:12]}", workload, passport, measurement).to_dict())
        except DatasetError as error:
            warnings.warn(f"vramcast: the run's row is lost: {error}", stacklevel=2)


def _process_bytes() -> tuple[int | None, str]:
    """Return the process peak from one NVML reading: the present memory, plus memory that torch released since its peak."""
    import torch

    if not torch.cuda.is_initialized():
        return None, COUNTERS_ONLY
    try:
        uuid_ = str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", "")) or None
        now = Nvml(uuid_).by_process().get(os.getpid())
    except NvmlAbsent:
        now = None
    if now is None:
        return None, COUNTERS_ONLY
    given_back = torch.cuda.max_memory_reserved() - torch.cuda.memory_reserved()
    return now + given_back, "nvml process at the end, plus what torch gave back since its peak"


def hugging_face(out: str | os.PathLike[str], name: str | None = None) -> Any:
    """Return a `transformers.TrainerCallback` that records one row per run.

    Args:
        out: Folder of the data set.
        name: Name of the job.
    """
    from transformers import TrainerCallback

    recorder = RunRecorder(out, name)

    class VramcastCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        """Records one row per run."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                recorder.begin(
                    kwargs["model"],
                    batch_size=args.per_device_train_batch_size,
                    optimizer=str(getattr(args.optim, "value", args.optim)),
                    precision="amp-bf16" if args.bf16 else "amp-fp16" if args.fp16 else None,
                    checkpointing=bool(args.gradient_checkpointing),
                )

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recorder.end(steps=state.global_step)

    return VramcastCallback()


def lightning(out: str | os.PathLike[str], name: str | None = None) -> Any:
    """Return a Lightning `Callback` that records one row per fit, even if it raises.

    Args:
        out: Folder of the data set.
        name: Name of the job.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    recorder = RunRecorder(out, name)

    class VramcastCallback(Callback):  # type: ignore[misc,unused-ignore]
        """Records one row per fit."""

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                optimizer = type(trainer.optimizers[0]).__name__ if trainer.optimizers else None
                recorder.begin(pl_module, optimizer=optimizer)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            recorder.end(steps=trainer.global_step)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            status: Status = "oom" if type(exception).__name__ == "OutOfMemoryError" else "error"
            recorder.end(status=status, steps=trainer.global_step, message=f"{type(exception).__name__}: {exception}")

    return VramcastCallback()
