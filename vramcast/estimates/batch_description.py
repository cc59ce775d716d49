"""Descriptions of the caller's batches, to be sent to a worker.

    tensor, NumPy array            TensorSpec, with its content if it is small
    tuple, list, dict              the same, part by part; so is the output of a tokenizer
    dataclass, named tuple         Record: an object of the same class, with its tensors on the device
    another object                 Record, sent unchanged; its own `to(device)` moves it

A source of batches inside a batch is rejected, because it does not reveal its largest batch; the error shows what to pass
instead. `vramcast.estimates.first_batch` takes the first batch of a data loader that is given as the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.core.text import shown
from vramcast.jobs.job import Batch, Record, TensorSpec

_PLAIN: Final = (bool, int, float, complex, str, bytes, slice, range)
# Classes of torch.utils.data that are often passed instead of a batch, and how to get a batch from each.
_SOURCES: Final = {
    "DataLoader": "next(iter(loader))",
    "Dataset": "torch.utils.data.default_collate([dataset[i] for i in range(32)])",
}


def described(batch: Any, name: str = "batch") -> Batch:
    """Return the description of a batch.

    Args:
        batch: The batch, or its labels.
        name: Name of the argument, for errors.
    Raises:
        UsageError: It is not a batch, or a part of it cannot be sent.
    """
    is_shape = isinstance(batch, tuple | list) and batch and all(type(one) is int for one in batch)
    if isinstance(batch, str) or is_shape or inspect.isroutine(batch) or isinstance(batch, type):
        raise UsageError(
            f"{name} is {shown(batch)}, which holds no tensor: pass an example, or describe one with "
            "TensorSpec((32, 3, 224, 224))."
        )
    return _described(batch)


def _described(part: Any) -> Batch:
    if isinstance(part, dict | UserDict) or (isinstance(part, Mapping) and not hasattr(part, "to")):
        return {key: _described(value) for key, value in part.items()}
    if isinstance(part, tuple | list):
        if hasattr(part, "_fields"):
            return _record(type(part), {name: getattr(part, name) for name in part._fields})
        return type(part)(_described(value) for value in part)
    if isinstance(part, TensorSpec):
        return part
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        named = [field.name for field in dataclasses.fields(part) if hasattr(part, field.name)]
        state = {**{name: getattr(part, name) for name in named}, **getattr(part, "__dict__", {})}
        return _record(functools.partial(_made, type(part)), state)
    return _leaf(part)


def _leaf(part: Any) -> Any:
    import torch  # the caller has imported it

    if isinstance(part, torch.Tensor):
        return _spec(part)
    if type(part).__module__ == "numpy" and hasattr(part, "__array_interface__") and hasattr(part, "shape") and part.shape:
        return _spec(_of_array(part))
    if part is None or isinstance(part, _PLAIN) or type(part).__module__ == "torch":
        return part
    _refuse_source(part)
    return _record(functools.partial(_itself, part), {})


def _spec(tensor: Any) -> TensorSpec:
    """Return the description of a tensor, with its content if it is small and on the host."""
    import torch

    from vramcast.tracer.program import meta_model

    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else "sparse"
        raise UsageError(
            f"The batch holds a {kind} tensor ({tensor.layout}), but only dense tensors are supported: pass it dense "
            "(x.to_dense()) and convert it in the model's forward."
        )
    small = tensor.nbytes < meta_model.BIG_BYTES and tensor.device.type == "cpu"
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if small else None
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype), content=content)


def _of_array(array: Any) -> Any:
    """Return the tensor that `torch.as_tensor` makes of a NumPy array."""
    import torch

    try:
        return torch.as_tensor(array.copy())  # the copy has its own layout
    except (TypeError, ValueError) as error:
        raise UsageError(f"The batch holds an array of {array.dtype}, which no tensor can hold ({error}).") from None


def _refuse_source(part: object) -> None:
    """Raise if a part of a batch is a source of batches."""
    if isinstance(part, Iterator):
        raise UsageError(f"The batch holds a {type(part).__name__}: pass one batch of it, for example next(iter(loader)).")
    for kind in type(part).__mro__:
        if kind.__module__.startswith("torch.utils.data") and kind.__name__ in _SOURCES:
            raise UsageError(
                f"The batch holds a {type(part).__name__}: pass one batch of it, for example {_SOURCES[kind.__name__]}; if "
                "batches vary, the largest."
            )


def _record(maker: Any, fields: Mapping[str, Any]) -> Record:
    from vramcast.tracer.program import meta_pickle

    return Record(meta_pickle.dumps(maker), {name: _described(value) for name, value in fields.items()})


def _made(kind: Any, **fields: Any) -> Any:
    """Return an object of a class with these fields, without a call of `__init__`."""
    made = kind.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _itself(part: Any) -> Any:
    return part
