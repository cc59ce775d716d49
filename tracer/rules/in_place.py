"""Operators that write their result into the first argument on CUDA.

A dispatch mode, and tensors of a subclass, see another operator there: one that makes a new tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.tracer.hooks.torch_api import current_autograd_node, storage_use_count
from vramcast.tracer.rules.reductions import merged

aten = torch.ops.aten

OnCard = Callable[[Any], bool]
# measured: torch 2.11 and 2.13, for a gradient held only by autograd, seen from the dispatch mode.
_OWN_TENSOR, _OWN_STORAGE = 4, 2


def takes_first(func: Any, args: Any, *, masking: bool, on_card: OnCard) -> bool:
    """Return whether the result of `func(*args)` takes the memory of its first argument on CUDA.

    Args:
        func: An operator with a schema that promises a new tensor.
        args: Its arguments, before the call.
        masking: Whether attention adds its mask to the scores.
        on_card: Whether a tensor lies on the card.
    """
    if func is aten.add.Tensor and masking:
        return True
    rule = _RULES.get(func)
    if rule is None or torch.is_grad_enabled():
        return False
    node = current_autograd_node()
    return node is not None and rule(node.name(), args, on_card)


def _adds_up(node_name: str, args: Any, on_card: OnCard) -> bool:
    """Return whether autograd adds a second gradient into the first, as it does if nothing else holds that one."""
    if not on_card(args[1]):
        return False
    first = args[0]
    alone = first._use_count() <= _OWN_TENSOR and storage_use_count(first.untyped_storage()._cdata) <= _OWN_STORAGE
    same = first.shape == args[1].shape and first.dtype == args[1].dtype
    lies_as_one = [stride for _, stride in merged(list(zip(first.shape, first.stride(), strict=True)))] in ([], [1])
    return alone and same and lies_as_one


def _scatters(node_name: str, args: Any, on_card: OnCard) -> bool:
    """Return whether autograd writes the gradient into its own zeros."""
    return not node_name.startswith("IndexPut")


def _in(node: str) -> Callable[[str, Any, OnCard], bool]:
    """Return the rule of an operator that the backward pass of one other operator runs in place."""

    def rule(node_name: str, args: Any, on_card: OnCard) -> bool:
        return node_name == node and all(a.numel() <= args[0].numel() for a in args[1:] if isinstance(a, torch.Tensor))

    return rule


_RULES: dict[Any, Callable[[str, Any, OnCard], bool]] = {
    aten.add.Tensor: _adds_up,
    **dict.fromkeys((aten.scatter_add.default, aten.scatter.src, aten.index_add.default, aten.index_put.default), _scatters),
    aten.sub.Tensor: _in("BinaryCrossEntropyWithLogitsBackward0"),
    aten.mul.Tensor: _in("BinaryCrossEntropyWithLogitsBackward0"),
    aten.put.default: _in("TakeBackward0"),
    aten.index_fill.int_Scalar: _in("TraceBackward0"),
}
