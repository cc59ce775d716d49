"""16-bit 3-D convolutions as in torch 2.9, which computes them without cuDNN if its version is one of a few.

Every other torch leaves them to cuDNN. Its own `slow_conv_dilated3d` first copies the input into columns: a kernel of 3 x 3 x 3
reads each element 27 times. torch's decision is compiled in, so the operators that decide get a kernel that switches cuDNN off
during the call.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracer.hooks.memory_formats import convolution_format
from vramcast.tracer.hooks.torch_api import DispatchKey, cudnn_enabled, set_cudnn_enabled
from vramcast.tracer.nullgpu.child import kernels
from vramcast.tracer.nullgpu.cudnn.libraries import is_avoided


def register() -> torch.library.Library:
    """Register the kernels; they last as long as the returned library."""
    return kernels.register({"convolution": _convolution, "convolution_backward": _convolution_backward}, "CUDA")


def _convolution(tensor: torch.Tensor, weight: torch.Tensor, *others: Any) -> Any:
    return _run(torch.ops.aten.convolution.default, tensor, weight, (tensor, weight, *others))


def _convolution_backward(gradient: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, *others: Any) -> Any:
    return _run(torch.ops.aten.convolution_backward.default, tensor, weight, (gradient, tensor, weight, *others))


def _run(operator: Any, tensor: torch.Tensor, weight: torch.Tensor, arguments: tuple[Any, ...]) -> Any:
    was_enabled = cudnn_enabled()
    channels_last = convolution_format(tensor, weight) != torch.contiguous_format
    native = is_avoided(weight.shape, str(tensor.dtype).removeprefix("torch."), channels_last=channels_last)
    set_cudnn_enabled(was_enabled and not native)
    try:
        return operator._op_dk(DispatchKey.CompositeExplicitAutograd, *arguments)
    finally:
        set_cudnn_enabled(was_enabled)
