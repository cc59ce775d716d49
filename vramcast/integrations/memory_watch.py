"""The common part of the callbacks: the answer before the first step, the peaks to log, and the record of a training."""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import sys
import warnings
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from vramcast.core.errors import CannotEstimate, DoesNotFit, OutputError, UsageError, VramcastError
from vramcast.core.files import atomic_write
from vramcast.core.text import shown
from vramcast.core.units import gib
from vramcast.datasets.collector.counters import counters
from vramcast.datasets.collector.run_recorder import RunRecorder, process_bytes
from vramcast.datasets.run import Status
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.explanations.explain import explain
from vramcast.hardware.cards import device
from vramcast.integrations.trainer_step import TrainerStep

TooLarge: TypeAlias = Literal["warn", "raise", "resize", "record"]
OUT_OF_MEMORY: Final = "vramcast-out-of-memory"
_INSIDE: Final = "vramcast.tracer.nullgpu.cuda_guard"  # a job on the null GPU, which is asked about as a whole
_TIMEOUT_S: Final = 300.0  # arbitrary: who waits longer asks `vramcast run` before the job


class MemoryWatch:
    """The memory of one trainer.

    Args:
        history: Folder whose runs.jsonl gets a row per training, for `vramcast learn`; None: the folder of the checkpoints.
        name: Name of the job there; None: the program's file name.
        on: Card to answer for; None: the card of this process.
        when_too_large: What happens if the job does not fit: `warn`, `raise` DoesNotFit, or `resize` the batch with more
            accumulation, so that the global batch stays. `record` asks nothing.

    Raises:
        UsageError: `on` or `when_too_large` is unknown.
    """

    def __init__(
        self, history: str | os.PathLike[str] | None = None, *, name: str | None = None, on: str | None = None,
        when_too_large: TooLarge = "warn",
    ) -> None:  # fmt: skip
        if when_too_large not in get_args(TooLarge):
            raise UsageError(f"when_too_large is {shown(when_too_large)}: give one of {', '.join(get_args(TooLarge))}.")
        self._card, self._action = device(on) if on is not None else None, when_too_large
        self._history, self._name, self._folder = history, name, Path()
        self._recorder: RunRecorder | None = None
        self.predicted: Estimate | None = None

    def ask(self, describe: Callable[[], TrainerStep], resize: Callable[[int, int], None] | None = None) -> None:
        """Answer whether the step fits, in a process without a GPU, and act as chosen.

        Raises:
            DoesNotFit: The job does not fit and shall raise, or no batch fits.
        """
        if self._action == "record" or _INSIDE in sys.modules:
            return
        size, answers = 0, {}
        try:
            step = describe()
            answers[step.batch_size] = value, reason, self.predicted = self._answer(step, step.batch_size)
            if value == "does not fit" and self._action == "resize" and resize is not None:
                sizes = [size for size in range(1, step.batch_size) if step.batch_size % size == 0]
                place = bisect_left(
                    sizes, True, key=lambda size: answers.setdefault(size, self._answer(step, size))[0] != "fits"
                )
                size = sizes[place - 1] if place else 0
        except Exception as error:  # the trainer's data set, collator and model are the user's own code
            _say(f"no verdict, and training goes on: {error}")
            return
        if size and resize is not None:
            self.predicted, steps = answers[size][2], step.accumulation * step.batch_size // size
            resize(size, steps)
            _say(f"a batch of {step.batch_size} does not fit ({reason}): a batch of {size} with {steps} accumulated is used")
        elif value == "does not fit" and self._action != "warn":
            smaller = "" if resize is not None else " To resize, the callback must be in the Trainer's `callbacks`."
            raise DoesNotFit(f"The training does not fit: {reason}.{smaller if self._action == 'resize' else ''}")
        elif value != "fits":
            _say(f"{value}: {reason}")
        logging.getLogger(__name__).info("%s: %s", value, reason)

    def _answer(self, step: TrainerStep, batch_size: int) -> tuple[str, str, Estimate | None]:
        import torch

        card = self._card
        if card is None:
            if not torch.cuda.is_available():
                raise CannotEstimate("this process has no card: name the one that is meant, for example on='a100-40gb'")
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            card = device(properties.name).with_memory(properties.total_memory)
        try:
            found = step.estimate(Estimator(device=card, timeout_s=_TIMEOUT_S), batch_size)
        except DoesNotFit as error:
            return "does not fit", str(error), None
        return found.verdict.value, found.verdict.reason, found

    def begin(self, model: Any, folder: str | os.PathLike[str], **workload: Any) -> None:
        """Begin a training of a model whose checkpoints go to a folder; `workload` are fields of `Workload`."""
        self._at_exit()  # a training before this one that raised past its trainer
        self._folder, self._recorder = Path(folder), RunRecorder(self._history or folder, self._name, model, **workload)
        # Training that raises may never call `end`, and runs that ran out of memory are worth most to a learner.
        atexit.register(self._at_exit)

    def values(self) -> dict[str, int]:
        """Return the known peaks in bytes, predicted and measured, by their names in a tracker."""
        seen, predicted = counters() | {"process_bytes": process_bytes()[0]}, self.predicted
        found = {f"measured_{name}_bytes": seen.get(f"{name}_bytes") for name in ("allocated", "reserved", "process")}
        if predicted is not None:
            names = ("allocated", "reserved", "process", "upper_bound")
            found |= {f"predicted_{name}_bytes": getattr(predicted, name) for name in names}
        return {f"vramcast/{name}": size for name, size in found.items() if size is not None}

    def end(self, error: BaseException | None = None, *, steps: int | None = None, status: Status = "ok") -> None:
        """End the training, if one has begun: append its row; out of memory, also write what is known of it."""
        if self._recorder is None:
            return
        recorder, self._recorder = self._recorder, None
        atexit.unregister(self._at_exit)
        message = f"{type(error).__name__}: {error}" if error is not None else ""
        if error is not None:
            status = "oom" if type(error).__name__ == "OutOfMemoryError" else "error"
        recorder.end(status, steps=steps, message=message)
        if status == "oom":
            with suppress(OSError, OutputError):
                write_report(self._folder / OUT_OF_MEMORY, message, self.predicted, self.values())

    def _at_exit(self) -> None:
        # Python keeps the error that it has printed.
        self.end(getattr(sys, "last_value", None), status="oom" if counters().get("ooms") else "unknown")


def write_report(path: Path, error: str, predicted: Estimate | None, peaks: dict[str, int]) -> None:
    """Write what explains a training that ran out of memory to PATH.txt, and torch's history, if any, to PATH.pickle.

    Raises:
        OSError: The folder cannot be made.
        OutputError: The text cannot be written.
    """
    import torch

    from vramcast.tracer.hooks import torch_api

    before = f"Before the first step: {predicted.verdict}" if predicted is not None else "There was no estimate of it."
    lines = [error, "", before, *(f"{name.removeprefix('vramcast/')}: {gib(size)}" for name, size in peaks.items()), ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    sources: list[str | Path] = [error]
    with suppress(RuntimeError, OutputError):  # after a CUDA error nothing more can be read; the text matters more
        if torch.cuda.is_initialized() and any((snapshot := torch_api.memory_snapshot())["device_traces"]):
            with atomic_write(path.with_suffix(".pickle")) as file:
                pickle.dump(snapshot, file)
            sources.append(path.with_suffix(".pickle"))
    for source in sources:
        with suppress(VramcastError, OSError):  # a damaged history, or an error of another kind
            lines += [str(explain(source)), ""]
    with atomic_write(path.with_suffix(".txt")) as file:
        file.write("\n".join(lines).encode())
    _say(f"out of memory: see {path.with_suffix('.txt')}")


def _say(text: str) -> None:
    warnings.warn(f"vramcast: {text}", stacklevel=2)
