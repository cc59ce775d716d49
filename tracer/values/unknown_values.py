"""Substitutes for unknown values: weights and activations have none.

Numbered cases:
  1. Floats are uniform random numbers between 0 and 1, equal for equal shapes: a router spreads its tokens evenly, boxes lie
     near their anchors, and a checkpointed forward pass decides the same when it is repeated.
  2. A mask selects everything: the most that it can.
  3. Integers, and floats cast to integers as they are, lie below the tensor's longest dimension: a list of indices usually
     points into a dimension about as long as itself (rows, classes, lengths), and zeros would point at nothing.
  4. If the distinct values are requested, all are different.
Matrix products and similar results are not computed but drawn afresh. So are the results of softmax and sigmoid: numbers
between 0 and 1, some of which pass a threshold, as in a trained model.
"""

from __future__ import annotations

from typing import Any

import torch

_COMPUTING = (
    "_fused", "adaptive", "addbmm", "addmm", "avg_pool", "baddbmm", "batch_norm", "bilinear", "bmm", "cdist",
    "conv", "cross_entropy", "ctc_loss", "einsum", "embedding", "fft", "fold", "grid_sample", "group_norm", "gru",
    "instance_norm", "interpolate", "layer_norm", "linalg", "linear", "lstm", "__matmul__", "__rmatmul__", "matmul",
    "max_pool", "mm", "multi_head", "mv", "ps_roi", "rms_norm", "rnn", "roi_", "scaled_dot", "svd", "tensordot", "unfold",
    "upsample",
)  # fmt: skip
# Calls that make a decision from floats: an order, a comparison, an integer.
_DECIDING = frozenset({
    "argmax", "argmin", "argsort", "bool", "bucketize", "byte", "char", "eq", "ge", "gt", "int", "isclose", "isfinite", "isinf",
    "isnan", "kthvalue", "le", "long", "lt", "max", "median", "min", "multinomial", "ne", "nms", "searchsorted", "short",
    "sort", "topk", "unique", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__",
})  # fmt: skip
# Calls whose answer is known without the numbers: in a working job they are finite.
_FINITE = frozenset({"isfinite", "isinf", "isnan", "isneginf", "isposinf"})
_INTEGERS = frozenset({"byte", "char", "int", "long", "short"})
_SQUASHING = frozenset({"sigmoid", "sigmoid_", "softmax"})


def is_computing(name: str) -> bool:
    """Return whether a call is too much work for the host."""
    return name.startswith(_COMPUTING)


def is_drawn_afresh(name: str) -> bool:
    """Return whether a call's result is drawn although the host could work it out."""
    return name in _SQUASHING


def is_deciding(name: str, args: Any) -> bool:
    """Return whether the result of a call on floats is a decision: an order, a comparison, an integer."""
    is_of_two = name in ("max", "min") and len(args) > 1 and isinstance(args[1], torch.Tensor)  # floats, one by one
    return (name in _DECIDING and not is_of_two) or _is_to_integer(name, args)


def is_of_finite(name: str) -> bool:
    """Return whether a call tests for finite numbers: in a working job all numbers are finite."""
    return name in _FINITE


def makes_integers(name: str, args: Any) -> bool:
    """Return whether a call casts floats to integers as they are."""
    return name in _INTEGERS or _is_to_integer(name, args)


def _is_to_integer(name: str, args: Any) -> bool:
    return name in ("to", "type") and any(isinstance(a, torch.dtype) and not a.is_floating_point for a in args)


def leaf(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return host values for an unknown tensor; equal for equal shapes."""
    seeded = torch.Generator().manual_seed(0)  # arbitrary: the seed
    if dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, generator=seeded).to(dtype)
    below = max(2, min(max(shape, default=1), torch.iinfo(dtype).max))
    return torch.randint(0, below, shape, generator=seeded).to(dtype)
