"""Reads by which the card's C++ code learns the size of a result: the values that decide it, and the largest possible answer.

nonzero(mask)               decided by mask; has at most as many rows as mask has elements
rows[mask]                  decided by mask alone
bincount(ids), a branch     decided by ids; has no largest result
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracer.values.host_reads import count, long, masks, numbers, rows

_BY_ALL = frozenset({
    "__bool__", "__contains__", "__index__", "__int__", "allclose", "argwhere", "bincount", "equal", "is_nonzero", "nonzero",
    "one_hot", "unique", "unique_consecutive",
})  # fmt: skip
_SPARSE = frozenset({"to_sparse", "to_sparse_bsc", "to_sparse_bsr", "to_sparse_coo", "to_sparse_csc", "to_sparse_csr"})
COPIES = frozenset({"copy_", "cpu", "item", "to", "tolist", "type"})
NUMBERS = COPIES | {"__index__", "__int__"}  # calls that hand one element or all elements to the host
# Calls that `deciding` and `most` know.
READING = _BY_ALL | _SPARSE | COPIES | {"coalesce", "masked_select", "nms", "repeat_interleave", "where"}
_TRUTHS = frozenset({"__bool__", "__contains__", "allclose", "equal", "is_nonzero"})


def deciding(name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors with values that decide what the host reads during a call; none if no read matters.

    Floats copied to the host decide nothing seen here: they are logged, or compared in Python.
    """
    if name in _BY_ALL or name in _SPARSE or (name == "where" and len(args) == 1):
        return tensors if "num_classes" not in kwargs and not (name == "one_hot" and len(args) > 1 and args[1] != -1) else []
    if name in ("__getitem__", "__setitem__"):
        return [*numbers(args[1]), *masks(args[1])]
    if name == "masked_select":
        return [args[1]] if len(args) > 1 else [kwargs["mask"]]
    if name == "repeat_interleave":
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats", args[0])
        return [repeats] if isinstance(repeats, torch.Tensor) and kwargs.get("output_size") is None else []
    if name == "coalesce" and args[0].layout == torch.sparse_coo and not args[0].is_coalesced():
        return [args[0]._indices()]
    if name in COPIES:
        source = args[1] if name == "copy_" else args[0]
        return [] if not isinstance(source, torch.Tensor) or source.is_floating_point() or source.is_complex() else [source]
    return []


def is_branch(name: str, tensor: torch.Tensor) -> bool:
    """Return whether a call gives a truth value; a byte counts as a flag, as it does in torch's own indexing."""
    return name in _TRUTHS or (name == "item" and tensor.dtype in (torch.bool, torch.uint8))


def most(name: str, args: Any, kwargs: Any) -> list[bytes] | None:
    """Return the reads of the card's C++ code that give the largest possible result; None if there is no largest."""
    if name in ("argwhere", "nonzero", "where"):
        return [count(args[0].numel())]
    if name in _SPARSE:
        return 2 * [count(args[0].numel())]
    if name == "masked_select":
        mask = args[1] if len(args) > 1 else kwargs["mask"]
        return [count(torch.broadcast_shapes(args[0].shape, mask.shape).numel())]
    if name in ("__getitem__", "__setitem__") and not numbers(args[1]):
        chosen = masks(args[1])
        written = args[2] if name == "__setitem__" else None
        if isinstance(written, torch.Tensor) and written.dim() and len(chosen) == 1:
            return [count(written.shape[0])]  # as many rows are chosen as are written; otherwise the job would fail
        return [count(mask.numel()) for mask in chosen]
    if name in ("unique", "unique_consecutive"):
        along = kwargs.get("dim")
        return [long(args[0].numel())] if along is None else [rows(args[0].shape[along])]
    if name == "coalesce":
        return [count(args[0]._nnz())]
    if name == "nms":
        return [count(args[0].shape[0])]
    return None
