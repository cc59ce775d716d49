"""Memory formats of convolutions, as PyTorch chooses them."""

from __future__ import annotations

import torch

from vramcast.tracer.hooks.torch_api import suggest_memory_format


def convolution_format(tensor: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return cuDNN's working format: channels_last if the input or the weight has it."""
    usable = tensor.dim() in (4, 5) and tensor.dtype != torch.float64
    return format_of(tensor.dim(), usable and any(lies_channels_last(t) for t in (tensor, weight)))


def format_of(dimensions: int, channels_last: bool) -> torch.memory_format:
    """Return the format of a tensor of that many dimensions."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(dimensions)
    return last if channels_last and last is not None else torch.contiguous_format


def lies_channels_last(tensor: torch.Tensor) -> bool:
    """Return whether PyTorch considers the tensor channels_last; in a 1-d convolution, with its height of 1."""
    if tensor.dim() == 3:
        (n, channels, width), strides = tensor.shape, tensor.stride()
        strides_2d = (*strides[:2], width * strides[2], strides[2])
        tensor = torch.empty_strided((n, channels, 1, width), strides_2d, device="meta")
    return bool(suggest_memory_format(tensor) != torch.contiguous_format)
