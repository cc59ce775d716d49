"""What a convolution on the card asks for: copies into cuDNN's format, results, and cuDNN's workspace.

measured: request by request on the null GPU, torch 2.11.0+cu130, a100-40gb.
"""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format

from vramcast.tracer.fake.call import Call, Plan

aten = torch.ops.aten


def convolution_format(tensor: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the format in which cuDNN works: channels_last as soon as the input or the weight lies so."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if last is None or tensor.dtype == torch.float64:
        return torch.contiguous_format
    lies_so = any(suggest_memory_format(t) == last for t in (tensor, weight))
    return last if lies_so else torch.contiguous_format


def _convolution(call: Call) -> None:
    tensor, weight = call.args[:2]
    held = call.hold_copies((tensor, weight), convolution_format(tensor, weight))
    call.begin_all()
    call.free(*held)


def _convolution_backward(call: Call) -> None:
    gradient, tensor, weight = call.args[:3]
    held = call.hold_copies((gradient, tensor, weight), convolution_format(tensor, weight))
    depthwise = call.argument("groups") == tensor.shape[1] > 1 and tensor.dim() == 4 and tensor.dtype == torch.float32
    call.begin(*((1, 0) if depthwise else (0, 1)))
    call.free(*held)
    if call.results[2] is not None:
        call.begin(2)
        call.free(*call.hold_reduction(gradient, [0, *range(2, gradient.dim())], 4))


PLANS: dict[object, Plan] = {aten.convolution: _convolution, aten.convolution_backward: _convolution_backward}
