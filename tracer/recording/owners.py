"""Whose a block is: by the tensors which parameters, gradients and optimizer state are made of, and else by who allocated it.

A wrapper holds plain tensors: a DTensor its shard, torchao's states codes and scales, bitsandbytes' 4-bit weights what they are
read with. What nobody names is known by when it was made and how long it is kept: flat gradients of DeepSpeed, an average of
the weights, the states of an optimizer which keeps them elsewhere than PyTorch's do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import torch

from vramcast.tracer.format.trace import Category, Phase

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
# Attributes of a parameter which hold its memory. spec: bitsandbytes' Params4bit, DeepSpeed's ZeRO-3 partition
_PARTS: Final = ("quant_state", "ds_tensor")

# spec: torch 2.6 to 2.11, ranges of FSDP2 (a module's name follows) and of DDP, which makes its buckets anew in a forward pass
_GATHERED: Final = "FSDP::all_gather_copy_out"
_BUCKETS: Final = "DistributedDataParallel.forward"


def plain(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among some values, of wrappers those which they hold."""
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
    """Yield the tensors of an object's fields, and of those fields which are objects of its own class."""
    for value in getattr(thing, "__dict__", {}).values():
        if type(value) is type(thing):
            yield from _of_object(value)
        else:
            yield from plain([value])


def of_ranks(category: Any, ranges: Iterable[tuple[int, str]]) -> None:
    """Give gathered parameters and DDP's buckets of gradients, which only their time knows, to their owners, in place.

    Args:
        category: Of each row.
        ranges: (row, range or operator which asked).
    """
    for row, asked_by in ranges:
        if asked_by.startswith(_GATHERED) and category[row] in (Category.ACTIVATION, Category.TEMPORARY):
            category[row] = Category.PARAMETER
        elif asked_by == _BUCKETS and category[row] == Category.ACTIVATION:
            category[row] = Category.GRADIENT


def claim(category: Any, size_bytes: Any, position: Any, freed_at: Any, phase: Any, marks: list[tuple[int, str]]) -> None:
    """Give temporaries which are none to their owners, in place.

    Args:
        category: Of each row; temporaries are looked at.
        size_bytes: Of each row.
        position: Of each row, its place in the history.
        freed_at: Of each row, the place where its block is freed, or one behind all others.
        phase: Of each row.
        marks: (place, what) of passes and of optimizers' steps.
    """
    end = marks[-1][0] if marks else 0  # what is freed behind it, the job's end freed
    begins = np.array([*(at for at, what in marks if what == "step"), end])
    next_step = begins[np.searchsorted(begins[:-1], position, side="left")]
    is_left = category == Category.TEMPORARY
    outlives = is_left & (freed_at > np.maximum(next_step, position))
    # Not what is made between backward and the step, as a scaler's flags are.
    last = np.searchsorted([at for at, _ in marks], position, side="left")
    in_step = np.array(["", *(what for _, what in marks)])[last] == "step"
    category[outlives & in_step & (phase == Phase.OPTIMIZER)] = Category.OPTIMIZER_STATE
    category[outlives & (phase == Phase.BACKWARD)] = Category.GRADIENT
    # A copy of the weights has their sizes: an average of them, a reference model.
    sizes = np.unique(size_bytes[category == Category.PARAMETER])
    category[is_left & (phase == Phase.BUILD) & (freed_at > end) & np.isin(size_bytes, sizes)] = Category.PARAMETER
