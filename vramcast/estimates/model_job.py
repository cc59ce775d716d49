"""The job of a model and a batch in the caller's own hands: described without weights, so that it can travel."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.core.text import shorten, shown
from vramcast.hardware.device import Device
from vramcast.jobs.job import Batch, Job, TensorSpec, Training, map_batch
from vramcast.jobs.text import JobText

_AROUND: Final = ("parallel", "world_size", "nproc_per_node", "alloc_conf", "stack", "memory")


def job_of_model(
    model: Any, batch: Batch, device: Device, *, labels: Any = None, loss: Callable[..., Any] | None = None,
    optimizer: str | type | Callable[..., Any] = "adam", **options: Any,
) -> Job:  # fmt: skip
    """Return the job of training (or running) `model` on `batch`; see `vramcast.estimate` for the arguments.

    Args:
        options: What else a `Training` says, and the fields of `JobText` that count for a model.
    Raises:
        UsageError: an argument is wrong.
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
        batch=map_batch(batch, _spec_of),
        labels=map_batch(labels, _spec_of) if labels is not None else None,
        loss=meta_pickle.dumps(loss) if loss is not None else None,
    )


def _spec_of(leaf: Any) -> Any:
    """Return what is sent of a part of a batch: the description of a tensor, other values as they are."""
    import torch  # which the caller has

    from vramcast.tracer.program import meta_model

    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided or leaf.is_nested:
            kind = "nested" if leaf.is_nested else "sparse"
            raise UsageError(
                f"The batch holds a {kind} tensor ({leaf.layout}), and only dense ones can be described: pass it dense "
                "(x.to_dense()) and convert it in the model's forward."
            )
        small = leaf.nbytes < meta_model.BIG_BYTES and leaf.device.type == "cpu"
        content = leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if small else None
        return TensorSpec(tuple(leaf.shape), str(leaf.dtype), content=content)
    if not isinstance(leaf, TensorSpec):
        _check_sendable(leaf)
    return leaf


def _check_sendable(leaf: object) -> None:
    """Raise where a part of a batch, neither tensor nor TensorSpec, cannot go to the process which traces."""
    if isinstance(leaf, Iterator):
        raise UsageError(f"The batch holds a {type(leaf).__name__}: pass one batch of it, for example next(iter(loader)).")
    try:
        pickle.dumps(leaf)
    except Exception as error:  # whatever its class raises
        raise UsageError(
            f"The batch holds a {type(leaf).__name__}, which cannot be sent to the process that traces "
            f"({shorten(str(error))}): pass tensors, tuples, dicts and plain values."
        ) from None
