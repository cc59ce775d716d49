"""Convolutions on the fake card: nothing but what all tracers know of them."""

from __future__ import annotations

import torch

from vramcast.tracer.convolutions import convolution_format as convolution_format
from vramcast.tracer.convolutions import convolve, differentiate
from vramcast.tracer.fake.call import Call, Plan

aten = torch.ops.aten


def _convolution(call: Call) -> None:
    convolve(call, call.convolution_workspaces, call.args, call.results, thread=call.thread)


def _convolution_backward(call: Call) -> None:
    differentiate(call, call.convolution_workspaces, call.args, thread=call.thread)


PLANS: dict[object, Plan] = {aten.convolution: _convolution, aten.convolution_backward: _convolution_backward}
