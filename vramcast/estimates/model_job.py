"""The job of a model object and a batch, described without weights so that it can be sent to a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.core.text import shown
from vramcast.estimates.batch_description import described
from vramcast.hardware.device import Device
from vramcast.jobs.job import Batch, Job, Training
from vramcast.jobs.text import JobText

_AROUND: Final = ("parallel", "world_size", "nproc_per_node", "alloc_conf", "stack", "memory")


def job_of_model(
    model: Any, batch: Batch, device: Device, *, labels: Any = None, loss: Callable[..., Any] | None = None,
    optimizer: str | type | Callable[..., Any] = "adam", **options: Any,
) -> Job:  # fmt: skip
    """Return the job of training (or running) `model` on `batch`; see `vramcast.estimate` for the arguments.

    Args:
        options: Other fields of `Training`, and the fields of `JobText` that apply to a model.
    Raises:
        UsageError: An argument is wrong.
    """
    from vramcast.tracer.program import meta_pickle

    if loss is not None and not callable(loss):
        raise UsageError(f"loss is {shown(loss)}: give a callable, loss(output, labels).")
    if not isinstance(optimizer, str) and not callable(optimizer):
        raise UsageError(f"optimizer is {shown(optimizer)}: give a name of torch.optim, a class, or a callable.")
    around = {name: options.pop(name) for name in _AROUND if name in options}
    training = Training(optimizer=optimizer if isinstance(optimizer, str) else meta_pickle.dumps(optimizer), **options)
    return JobText(training=training, **around).around(
        device,
        model=meta_pickle.dumps(model),
        batch=described(batch),
        labels=described(labels, "labels") if labels is not None else None,
        loss=meta_pickle.dumps(loss) if loss is not None else None,
    )
