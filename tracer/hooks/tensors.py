"""The tensors and other leaves among an operator's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from vramcast.tracer.hooks.torch_api import tree_flatten, tree_map

# Leaves for PyTorch's pytree, as most arguments are; it takes ten times as long to find that out.
LEAVES: Final = frozenset(
    {torch.Tensor, torch.nn.Parameter, int, float, bool, str, complex, bytes, type(None), type(Ellipsis), type}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)


TENSORS: Final = frozenset({torch.Tensor, torch.nn.Parameter})


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """Return all tensors in `values`, including those in lists, tuples and dicts, in order."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in LEAVES:
            continue
        elif isinstance(value, (list, tuple)):  # an optimizer's lists have hundreds
            found += value if TENSORS.issuperset(map(type, value)) else tensors_in(*value)
        elif isinstance(value, dict):
            found += tensors_in(*value.values())
    return found


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves of `value`, in the order of PyTorch's pytree."""
    kind = type(value)
    if kind in LEAVES or kind is slice:
        return [value]
    if kind is tuple or kind is list:
        if LEAVES.issuperset(map(type, value)):
            return [*value]
        return [leaf for part in value for leaf in leaves_of(part)]
    if kind is dict:
        return [leaf for part in value.values() for leaf in leaves_of(part)]
    return tree_flatten(value)[0]


def map_leaves(change: Callable[[Any], Any], value: Any, leaf: type | None = None) -> Any:
    """Return `value` with each leaf changed; `leaf` is another type of leaves."""
    kind = type(value)
    if kind in LEAVES or kind is leaf:
        return change(value)
    if kind is tuple or kind is list:
        return kind([map_leaves(change, part, leaf) for part in value])
    if kind is dict:
        return {key: map_leaves(change, part, leaf) for key, part in value.items()}
    return tree_map(change, value)
