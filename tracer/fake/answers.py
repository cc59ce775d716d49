"""Operators whose meta kernel is missing, or answers another question than the card would."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracer.convolutions import convolution_format
from vramcast.tracer.fake.readings import ANSWERS as READINGS
from vramcast.tracer.fake.readings import Answer
from vramcast.tracer.fake.recurrent import ANSWERS as RECURRENT
from vramcast.tracer.fake.tensor import META, CudaTensor, InsideKernel
from vramcast.tracer.reductions import merged

aten = torch.ops.aten


# measured: torch 2.11 and 2.13, for a gradient which autograd alone holds, seen from the dispatch mode.
_OWN_TENSOR, _OWN_STORAGE = 4, 2


def _add(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Autograd adds a second gradient into the first where nobody else holds that, and attention its mask to the scores.

    For a subclass of Tensor PyTorch makes a new tensor in both cases.
    """
    first = args[0]
    if mode.masking:
        with InsideKernel():
            return first.detach()
    if torch._C._current_autograd_node() is None or torch.is_grad_enabled() or not isinstance(args[1], CudaTensor):
        return NotImplemented
    storage = first.untyped_storage()
    alone = first._use_count() <= _OWN_TENSOR and torch._C._storage_Use_Count(storage._cdata) <= _OWN_STORAGE
    same = first.shape == args[1].shape and first.dtype == args[1].dtype
    lies_as_one = [stride for _, stride in merged(list(zip(first.shape, first.stride(), strict=True)))] in ([], [1])
    if not (alone and same and lies_as_one):
        return NotImplemented
    with InsideKernel():
        return first.detach()


def _scatter(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Autograd writes these gradients into zeros in place; for a subclass it makes a new tensor."""
    node = torch._C._current_autograd_node()
    if node is None or torch.is_grad_enabled() or node.name().startswith("IndexPut"):
        return NotImplemented
    with InsideKernel():
        return args[0].detach()


def _in_place_in(node_name: str) -> Answer:
    """Return the answer of an operator which the backward pass of one other operator takes in place, but for subclasses."""

    def answered(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        node = torch._C._current_autograd_node()
        if node is None or torch.is_grad_enabled() or node.name() != node_name:
            return NotImplemented
        if any(isinstance(a, torch.Tensor) and a.numel() > args[0].numel() for a in args[1:]):
            return NotImplemented
        with InsideKernel():
            return args[0].detach()

    return answered


def _col2im(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The result begins in the input's size, and keeps that memory when it shrinks."""
    with InsideKernel():
        return _larger(func(*args, **kwargs), args[0].numel())


def _batch_norm_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradient lies as the input does."""
    with InsideKernel():
        result, *others = func(*args, **kwargs)
        return (torch.empty_like(args[1], memory_format=torch.preserve_format) if args[-1][0] else result, *others)


def _ctc_loss(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """No meta kernel. Lengths which lie on the card read as zero: the null GPU's targets are as short."""
    scores, lengths = args[0], args[3]
    if isinstance(lengths, CudaTensor):
        mode.host_reads += 1
        longest = 0
    else:
        longest = max(lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths, default=0)
    n_steps, batch = scores.shape[:2]
    return (
        torch.empty(batch, dtype=scores.dtype, device=META),
        torch.empty(batch, n_steps, 2 * longest + 1, dtype=scores.dtype, device=META),
    )


def _like_input(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a gradient like the operator's second argument, its input; no meta kernel."""
    return torch.empty(args[1].shape, dtype=args[1].dtype, device=META)


def _in_place(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Change tensors in place and return nothing; no meta kernel."""


_GROUP_ALIGNMENT_BYTES = 16  # spec: of the rows of a grouped product, torch 2.11


def _grouped_mm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A product a group of rows. The meta kernel takes bfloat16 only, which is not so on the card."""
    first, second = args[:2]
    shape = [first.shape[-2], second.shape[-1]]
    if first.dim() == second.dim():
        offsets = args[2] if len(args) > 2 else kwargs.get("offs")
        shape.insert(0, first.shape[0] if first.dim() == 3 else offsets.shape[0])
    dtype = kwargs.get("out_dtype") or first.dtype
    aligned = _GROUP_ALIGNMENT_BYTES // dtype.itemsize
    row = -(-shape[-1] // aligned) * aligned
    return torch.empty_strided(shape, [shape[-2] * row, row, 1][-len(shape) :], dtype=dtype, device=META)


def _convolution(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The result lies as cuDNN makes it."""
    with InsideKernel():
        result = func(*args, **kwargs)
        return torch.empty_like(result, memory_format=convolution_format(*args[:2]))


def _larger(result: torch.Tensor, n_elements: int) -> torch.Tensor:
    """Return a meta tensor like `result` in a storage of at least `n_elements`."""
    storage = torch.empty(max(n_elements, result.numel()), dtype=result.dtype, device=META)
    return storage.as_strided(result.shape, result.stride())


def _loss(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The result begins with a loss an element, and keeps that memory when it shrinks to one number."""
    with InsideKernel():
        return _larger(func(*args, **kwargs), args[0].numel())


def _convolution_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradients lie as cuDNN makes them, whatever the incoming gradient lies like."""
    _, tensor, weight = args[:3]
    wanted = args[-1]
    memory_format = convolution_format(tensor, weight)
    make = [
        torch.empty(t.shape, dtype=t.dtype, device=META, memory_format=memory_format) if flag else None
        for t, flag in zip((tensor, weight), wanted, strict=False)
    ]
    bias = torch.empty(args[0].shape[1], dtype=weight.dtype, device=META) if wanted[2] else None
    return (*make, bias)


ANSWERS: dict[Any, Answer] = {
    **RECURRENT,
    **READINGS,
    aten.add.Tensor: _add,
    **dict.fromkeys((aten.scatter_add.default, aten.scatter.src, aten.index_add.default, aten.index_put.default), _scatter),
    aten.col2im.default: _col2im,
    **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default, aten.binary_cross_entropy.default), _loss),
    **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), _ctc_loss),
    **dict.fromkeys(
        (
            aten._ctc_loss_backward.default,
            aten._ctc_loss_backward.Tensor,
            aten.multi_margin_loss_backward.default,
            aten.multilabel_margin_loss_backward.default,
        ),
        _like_input,
    ),
    **dict.fromkeys((aten._fused_sgd_.default, aten._fused_sgd_.tensor_lr), _in_place),
    aten._grouped_mm.default: _grouped_mm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.sub.Tensor: _in_place_in("BinaryCrossEntropyWithLogitsBackward0"),
    aten.mul.Tensor: _in_place_in("BinaryCrossEntropyWithLogitsBackward0"),
    aten.put.default: _in_place_in("TakeBackward0"),
    aten.index_fill.int_Scalar: _in_place_in("TraceBackward0"),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
