"""What stands for a value which nobody knows: weights and activations have none.

Numbered cases:
  1. floats are uniform random numbers between 0 and 1, equal for equal shapes: a router spreads its tokens evenly, boxes lie
     about their anchors, and a checkpointed forward decides the same when it is repeated. They are drawn where they meet
     something known (a mask, an anchor, but not a weight), or where something is decided by them;
  2. a mask selects everything: the most that it can;
  3. integers are all different where the distinct ones are asked for.

Matrix products and the like are not computed: their results are drawn afresh. So is nothing above MAX_ELEMENTS.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracer.values.reads import masks

_COMPUTING = (
    "_foreach", "_fused", "adaptive", "addbmm", "addmm", "avg_pool", "baddbmm", "batch_norm", "bilinear", "bmm", "cdist",
    "conv", "cross_entropy", "ctc_loss", "einsum", "embedding", "fft", "fold", "grid_sample", "group_norm", "gru",
    "instance_norm", "interpolate", "layer_norm", "linalg", "linear", "lstm", "__matmul__", "__rmatmul__", "matmul",
    "max_pool", "mm", "multi_head", "mv", "ps_roi", "rms_norm", "rnn", "roi_", "scaled_dot", "svd", "tensordot", "unfold",
    "upsample",
)  # fmt: skip
# Calls whose result is a decision, made of floats: an order, a comparison, an integer.
_DECIDING = frozenset({
    "argmax", "argmin", "argsort", "bool", "bucketize", "byte", "char", "eq", "ge", "gt", "int", "isclose", "isfinite", "isinf",
    "isnan", "kthvalue", "le", "long", "lt", "max", "median", "min", "multinomial", "ne", "nms", "searchsorted", "short",
    "sort", "topk", "unique", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__",
})  # fmt: skip


def is_computing(name: str) -> bool:
    """Return whether a call is too much work for the host."""
    return name.startswith(_COMPUTING)


def is_deciding(name: str, args: Any) -> bool:
    """Return whether the result of a call on floats is a decision: an order, a comparison, an integer."""
    return name in _DECIDING or (name == "to" and any(isinstance(a, torch.dtype) and not a.is_floating_point for a in args))


def draw(name: str, args: Any, tensor: torch.Tensor, *, floats: bool) -> torch.Tensor | None:
    """Return host values for `tensor`, an unknown argument of the call `name`; None where none are needed.

    Args:
        name: As Python calls it.
        args: All positional arguments of the call.
        tensor: One of them.
        floats: Whether floats are needed: they meet something known here, or are decided upon.
    """
    if tensor.is_floating_point():
        if not floats:
            return None
        # arbitrary: the seed
        return torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor.dtype)
    if name.startswith("unique"):
        return torch.arange(tensor.numel()).view(tensor.shape).to(tensor.dtype)
    if _is_selecting(name, args, tensor):
        return torch.ones(tensor.shape, dtype=tensor.dtype)
    return None


def _is_selecting(name: str, args: Any, tensor: torch.Tensor) -> bool:
    if name in ("__getitem__", "masked_select"):
        return any(tensor is mask for mask in masks(args[1]))
    return name in ("nonzero", "argwhere") or (name == "where" and len(args) == 1)
