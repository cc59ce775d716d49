"""The values that PyTorch's CUDA code reads back from the card, in order, taken from a run of the same call on the host.

Python sees only the call. The reads happen inside, where C++ needs a count before it can make the result. The operators below
the call are the same on both sides, so a dispatch mode around the host's run sees them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from vramcast.tracer.hooks.installed_torch import is_before
from vramcast.tracer.hooks.torch_api import TorchDispatchMode

aten = torch.ops.aten
SINCE_2_15 = not is_before((2, 15))  # the release changed what two operators read


def count(n: int) -> bytes:
    """Return a count in the form that CUDA's selections read (32 bits)."""
    return int(n).to_bytes(4, "little", signed=True)


def raw(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a host tensor, row by row."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def masks(indices: Any) -> list[torch.Tensor]:
    """Return the masks among a tensor's indices."""
    return [i for i in _tensors(indices) if i.dtype in (torch.bool, torch.uint8)]


def numbers(indices: Any) -> list[torch.Tensor]:
    """Return the one-element integer tensors among a tensor's indices: Python's indexing reads them."""
    return [i for i in _tensors(indices) if i.dim() == 0 and i.dtype not in (torch.bool, torch.uint8)]


def _tensors(indices: Any) -> list[torch.Tensor]:
    among = indices if isinstance(indices, (tuple, list)) else (indices,)
    return [i for i in among if isinstance(i, torch.Tensor)]


def selected(indices: Any) -> list[bytes]:
    """Return the values that indexing a tensor reads: the number of ones in each mask."""
    return [count(int(mask.count_nonzero())) for mask in masks(indices)]


def repeated(repeats: torch.Tensor) -> list[bytes]:
    """Return the values that repeating rows reads: the sum of the repeats, and their smallest or that none is negative."""
    return [long(int(repeats.sum())), raw(repeats.min()) if SINCE_2_15 else b"\1"]


def long(n: int) -> bytes:
    """Return a count in the form that CUDA's `unique` reads (64 bits)."""
    return int(n).to_bytes(8, "little", signed=True)


def rows(n: int) -> bytes:
    """Return a count in the form that CUDA's `unique` of rows reads."""
    return long(n) if SINCE_2_15 else count(n)


# measured: the size and number of reads for each operator, null GPU, torch 2.11 and 2.15.
_READS: dict[Any, Callable[[Any, Any], list[bytes]]] = {
    aten._local_scalar_dense: lambda args, result: [raw(args[0])],
    aten.nonzero: lambda args, result: [count(result.shape[0])],
    aten.masked_select: lambda args, result: [count(result.shape[0])],
    aten.index: lambda args, result: selected(args[1]),
    aten.index_put_: lambda args, result: selected(args[1]),
    aten.index_put: lambda args, result: selected(args[1]),
    aten._unique2: lambda args, result: [long(result[0].shape[0])],
    aten.unique_consecutive: lambda args, result: [long(result[0].shape[0])],
    aten.unique_dim: lambda args, result: [rows(result[0].shape[args[1]])],
    aten.unique_dim_consecutive: lambda args, result: [rows(result[0].shape[args[1]])],
    aten.repeat_interleave: lambda args, result: repeated(args[0]),
    aten.bincount: lambda args, result: [raw(args[0].min()), raw(args[0].max())] if args[0].numel() else [],
    aten._to_sparse: lambda args, result: 2 * [count(result._nnz())],  # one for a single dimension, two if values are blocks
    aten.equal: lambda args, result: [bytes([result])],
    aten.allclose: lambda args, result: [bytes([result])],
}


class ReadLog(TorchDispatchMode):
    """A mode that records in `reads` what the same operators would read from the card."""

    def __init__(self, reads: list[bytes]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        reads = _READS.get(func._overloadpacket)
        if reads is not None:
            self.reads += reads(args, result)
        elif func.name() == "torchvision::nms":
            self.reads.append(count(result.shape[0]))
        return result


class KnownReads:
    """The answers to the next reads on a card without C code; like `nullgpu_know` on the null GPU.

    A read whose size differs from the next answer is unknown.
    """

    def __init__(self) -> None:
        self._reads: deque[bytes] = deque()

    def know(self, reads: list[bytes]) -> int:
        """Set the answers to the next reads; return how many answers were left from the last call."""
        untaken = len(self._reads)
        self._reads = deque(reads)
        return untaken

    def take(self, size_bytes: int) -> bytes | None:
        """Return the answer to a read of this many bytes, or None."""
        return self._reads.popleft() if self._reads and len(self._reads[0]) == size_bytes else None
