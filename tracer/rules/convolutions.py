"""Requests of a convolution on the card, in order, for the tracers that run no CUDA code.

Forward: copies into cuDNN's format, the result, the workspace. Backward: the input's gradient with its workspace, then the
weight's. measured: request by request on the null GPU, torch 2.11.0+cu130, a100-40gb.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from vramcast.tracer.hooks.memory_formats import convolution_format, format_of, lies_channels_last
from vramcast.tracer.hooks.torch_api import (
    cudnn_allow_tf32,
    cudnn_benchmark,
    cudnn_deterministic,
    cudnn_enabled,
)
from vramcast.tracer.rules.convolution_workspaces import Convolution, CudnnSettings, Operation
from vramcast.tracer.rules.operator_call import OperatorCall


def convolve(call: OperatorCall) -> None:
    """Make the requests of `aten.convolution`; its only result has index 0."""
    tensor, weight = call.args[:2]
    memory_format = convolution_format(tensor, weight)
    convolution = _described(tensor, weight, call.results[0], call.args[3:9], memory_format, output_is_result=True)
    if convolution.uses_depthwise_kernel and len(convolution.input) == 4:
        held = call.hold_copies((tensor, weight), memory_format)
        call.begin(0)
    else:
        held = call.hold_copies((tensor,), memory_format)
        call.begin(0)
        held += call.hold_copies((weight,), memory_format)
        _run(call, convolution, "backward_data" if convolution.transposed else "forward")
    call.free(*reversed(held))


def differentiate(call: OperatorCall) -> None:
    """Make the requests of `aten.convolution_backward`; its results are the gradients of input, weight and bias."""
    gradient, tensor, weight = call.args[:3]
    memory_format = convolution_format(tensor, weight)
    convolution = _described(tensor, weight, gradient, call.args[4:10], memory_format, output_is_result=False)
    if convolution.uses_depthwise_kernel:
        _differentiate_depthwise(call, flat=len(convolution.input) == 4)
    elif convolution.takes_columns and cudnn_enabled() and call.convolution_workspaces.avoids_cudnn(convolution):
        _differentiate_in_columns(call, convolution)
        return
    else:
        _differentiate_with_cudnn(call, convolution, memory_format)
    if call.args[-1][2]:
        call.begin(2)
        call.free(*call.hold_reduction(gradient, [0, *range(2, gradient.dim())], max(gradient.element_size(), 4)))


def _differentiate_with_cudnn(call: OperatorCall, convolution: Convolution, memory_format: torch.memory_format) -> None:
    """Make the requests of a backward pass in cuDNN.

    The gradient is copied once if it is in the other format, and for each operation if it has gaps in the right one. A tensor
    of 1x1 images is in both formats, so each operation may take another.
    """
    gradient, tensor, weight = call.args[:3]
    of_input, of_weight = call.args[-1][:2]
    held = call.hold_copies((tensor,), memory_format) if of_weight else []
    in_place = not of_weight or tensor.is_contiguous(memory_format=memory_format)
    last = lies_channels_last(tensor) if in_place else convolution.channels_last  # the input's format; the gradient follows
    copied = convolution.transposed or lies_channels_last(gradient) != last
    if copied:
        fits = convolution.transposed and gradient.is_contiguous(memory_format=format_of(tensor.dim(), last))
        held.append(call.ask(0 if fits else gradient.nbytes))
    if of_input:
        with_weight = last or convolution_format(weight, weight) != torch.contiguous_format
        memory_format = format_of(tensor.dim(), with_weight)
        call.begin(0)
        copies = call.hold_copies((weight,) if copied else (weight, gradient), memory_format)
        operation: Operation = "forward" if convolution.transposed else "backward_data"
        _run(call, replace(convolution, channels_last=with_weight), operation)
        call.free(*reversed(copies))
    if of_weight:
        copies = [] if copied else call.hold_copies((gradient,), format_of(tensor.dim(), last))
        call.begin(1)
        _run(call, replace(convolution, channels_last=last), "backward_filter")
        call.free(*copies)
    call.free(*reversed(held))


def _differentiate_in_columns(call: OperatorCall, convolution: Convolution) -> None:
    """Make the requests of `slow_conv_dilated3d`'s backward pass: all results, then the columns, with each sample's bias."""
    gradient, tensor, weight = call.args[:3]
    wanted = call.args[-1]
    held = call.hold_copies((gradient, tensor, weight), torch.contiguous_format)
    call.begin(*(i for i in range(3) if wanted[i]))
    columns = call.ask(convolution.columns_bytes)
    if wanted[2]:
        for _ in range(tensor.shape[0]):
            call.free(call.ask(weight.shape[0] * gradient.element_size()))
    call.free(columns, *reversed(held))


def _differentiate_depthwise(call: OperatorCall, *, flat: bool) -> None:
    """Make the requests of PyTorch's own kernels: `flat` ones begin with the weight's gradient, 3-d ones with both results."""
    gradient, tensor, weight = call.args[:3]
    wanted = call.args[-1]
    steps = [(1, tensor), (0, weight)] if flat else [(0, weight), (1, tensor)]
    if not flat:
        call.begin(*(i for i in (0, 1) if wanted[i]))
    held = call.hold_copies((gradient,), torch.contiguous_format)
    for index, other in steps:
        if wanted[index]:
            copies = call.hold_copies((other,), torch.contiguous_format)
            if flat:
                call.begin(index)
            call.free(*copies)
    call.free(*held)


def cudnn_settings() -> CudnnSettings:
    """Return the job's current settings."""
    return CudnnSettings(
        enabled=cudnn_enabled(),
        benchmark=cudnn_benchmark(),
        deterministic=cudnn_deterministic() or torch.are_deterministic_algorithms_enabled(),
        allow_tf32=cudnn_allow_tf32(),
    )


def _run(call: OperatorCall, convolution: Convolution, operation: Operation) -> None:
    found = call.convolution_workspaces.ask(convolution, operation, cudnn_settings(), thread=call.thread)
    if found is None:
        return
    if found.search_bytes is not None:
        call.free(call.ask(found.search_bytes))
        call.history.end_search()
    call.free(call.ask(found.size_bytes))


def _described(
    tensor: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, numbers: Any, memory_format: torch.memory_format,
    *, output_is_result: bool,
) -> Convolution:  # fmt: skip
    """Return the convolution of these tensors; `numbers` are stride, padding, dilation, transposed, output padding, groups."""
    flat = tensor.dim() == 3  # PyTorch runs it as a 2-d one
    space = tensor.dim() - 2

    def sizes(t: torch.Tensor) -> tuple[int, ...]:
        return (*t.shape[:2], 1, t.shape[2]) if flat else tuple(t.shape)

    def spread(values: Any, first: int) -> tuple[int, ...]:
        values = tuple(values) * (space if len(values) == 1 else 1)
        return (first, *values) if flat else values

    def offset_bytes(t: torch.Tensor) -> int:
        return int(t.storage_offset()) * t.element_size() if t.is_contiguous(memory_format=memory_format) else 0

    stride, padding, dilation, transposed, output_padding, groups = numbers
    return Convolution(
        sizes(tensor), sizes(weight), sizes(output),
        spread(stride, 1), spread(padding, 0), spread(dilation, 1), groups, transposed, spread(output_padding, 0),
        dtype=str(tensor.dtype).removeprefix("torch."),
        channels_last=memory_format != torch.contiguous_format,
        offsets_bytes=(offset_bytes(tensor), offset_bytes(weight), 0 if output_is_result else offset_bytes(output)),
    )  # fmt: skip
