"""Block attribution: by the tensors inside parameters, gradients and optimizer state, or else by the allocating operator.

A wrapper holds plain tensors: a DTensor its shard, torchao's states codes and scales, bitsandbytes' 4-bit weights their
quantization state. Blocks without a known owner are attributed by their time and lifetime: flat gradients of DeepSpeed, an
average of the weights, and the states of an optimizer that stores them elsewhere than PyTorch's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import torch

from vramcast.tracer.format.trace import Category, Phase
from vramcast.tracer.recording.profile import ProfilePlace

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
# Attributes of a parameter that hold its memory. spec: bitsandbytes' Params4bit, DeepSpeed's ZeRO-3 partition
_PARTS: Final = ("quant_state", "ds_tensor")

# spec: torch 2.6 to 2.11, ranges of FSDP2 (a module's name follows) and of DDP, which rebuilds its buckets in a forward
# pass
_GATHERED: Final = "FSDP::all_gather_copy_out"
_BUCKETS: Final = "DistributedDataParallel.forward"


def plain(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among some values; for wrappers, the tensors inside."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield from _of(value)


def _of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if type(tensor) is torch.Tensor:
        yield tensor
        return
    if type(tensor) in _PLAIN or not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
    else:
        names, _ = tensor.__tensor_flatten__()
        yield from plain(getattr(tensor, name, None) for name in names)
    for name in _PARTS:
        part = tensor.__dict__.get(name)
        if part is not None:
            yield from plain([part]) if isinstance(part, torch.Tensor) else _of_object(part)


def _of_object(thing: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an object's fields, including fields that are objects of its own class."""
    for value in getattr(thing, "__dict__", {}).values():
        if type(value) is type(thing):
            yield from _of_object(value)
        else:
            yield from plain([value])


def of_ranks(category: Any, where: Callable[[Callable[[ProfilePlace], bool]], Any]) -> None:
    """Assign owners, in place, to gathered parameters and to DDP's buckets of gradients, identified only by their time.

    Args:
        category: Category of each row.
        where: Returns whether each row was allocated at a wanted place.
    """
    is_activation = category == Category.ACTIVATION
    category[where(lambda place: place.op.startswith(_GATHERED)) & (is_activation | (category == Category.TEMPORARY))] = (
        Category.PARAMETER
    )
    category[where(lambda place: place.op == _BUCKETS) & is_activation] = Category.GRADIENT


def claim(category: Any, size_bytes: Any, position: Any, freed_at: Any, phase: Any, marks: list[tuple[int, str]]) -> None:
    """Assign owners, in place, to temporaries that are not temporary.

    Args:
        category: Category of each row; temporaries are examined.
        size_bytes: Size of each row.
        position: Place of each row in the history.
        freed_at: Place where each row's block is freed, or one behind all others.
        phase: Phase of each row.
        marks: (place, what) of passes and of optimizers' steps.
    """
    end = marks[-1][0] if marks else 0  # blocks freed behind it were freed by the job's end
    begins = np.array([*(at for at, what in marks if what == "step"), end])
    next_step = begins[np.searchsorted(begins[:-1], position, side="left")]
    is_left = category == Category.TEMPORARY
    outlives = is_left & (freed_at > np.maximum(next_step, position))
    # Without blocks made between backward and the step, such as a scaler's flags.
    last = np.searchsorted([at for at, _ in marks], position, side="left")
    in_step = np.array(["", *(what for _, what in marks)])[last] == "step"
    category[outlives & in_step & (phase == Phase.OPTIMIZER)] = Category.OPTIMIZER_STATE
    category[outlives & (phase == Phase.BACKWARD)] = Category.GRADIENT
    # Copies of the weights have their sizes: an average of them, a reference model.
    sizes = np.unique(size_bytes[category == Category.PARAMETER])
    category[is_left & (phase == Phase.BUILD) & (freed_at > end) & np.isin(size_bytes, sizes)] = Category.PARAMETER
