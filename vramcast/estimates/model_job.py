"""The job of a model and a batch in the caller's own hands: described without weights, so that it can travel."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

from vramcast.core.errors import UsageError
from vramcast.core.text import shorten, shown
from vramcast.hardware.cards import checked_card_bytes
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.jobs.job import Batch, Job, TensorSpec, Training, current_folder, map_batch
from vramcast.jobs.parallel import parse as parse_parallel


def job_of_model(
    model: Any, batch: Batch, device: Device, *, labels: Any = None, loss: Callable[..., Any] | None = None,
    optimizer: str | type | Callable[..., Any] = "adam", memory: int | str | None = None, alloc_conf: str | None = None,
    stack: Stack | None = None, parallel: str | None = None, world_size: int | None = None,
    nproc_per_node: int | None = None, **training: Any,
) -> Job:  # fmt: skip
    """Return the job of training (or running) `model` on `batch`; see `vramcast.estimate` for the arguments.

    Args:
        training: What else a `Training` says.
    Raises:
        UsageError: an argument is wrong.
    """
    from vramcast.tracer.program import meta_pickle

    if loss is not None and not callable(loss):
        raise UsageError(f"loss is {shown(loss)}: give a callable, loss(output, labels).")
    if not isinstance(optimizer, str) and not callable(optimizer):
        raise UsageError(f"optimizer is {shown(optimizer)}: give a name of torch.optim, a class, or a callable.")
    return Job(
        device=device,
        model=meta_pickle.dumps(model),
        batch=map_batch(batch, _spec_of),
        labels=map_batch(labels, _spec_of) if labels is not None else None,
        loss=meta_pickle.dumps(loss) if loss is not None else None,
        training=Training(optimizer=optimizer if isinstance(optimizer, str) else meta_pickle.dumps(optimizer), **training),
        parallel=parse_parallel(parallel, world_size, nproc_per_node),
        alloc_conf=alloc_conf,
        stack=stack,
        memory_bytes=checked_card_bytes(memory) if memory is not None else None,
        search_path=tuple(sys.path),
        working_folder=current_folder(),
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
