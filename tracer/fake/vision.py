"""torchvision's operators for the case that its library does not load, as far as the fake card needs them.

spec: torchvision 0.26 and 0.28, the shapes of `_meta_registrations.py` and the gradient of
`ops/autograd/roi_align_kernel.cpp`.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

_BACKWARD = (
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor"
)


def register() -> torch.library.Library:
    """Register torchvision's operators, with shapes and a gradient for `roi_align`; they exist as long as the result lives.

    Its schema must be defined already (`imports.define_torchvision_operators`).
    """
    extension: Any = importlib.import_module("torchvision.extension")
    extension._has_ops = lambda: True
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define(_BACKWARD)
    library.impl("nms", suppress, "CPU")  # for `tracer/values`
    library.impl("roi_align", _roi_align, "Meta")
    library.impl("_roi_align_backward", _roi_align_backward, "Meta")
    torch.library.register_autograd("torchvision::roi_align", _gradient, setup_context=_remember, lib=library)
    return library


def suppress(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Return the indices of the boxes (n x 4: left, top, right, bottom) that no better box covers, best first."""
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    alive = torch.ones(len(boxes), dtype=torch.bool)
    for i in range(len(boxes)):
        if alive[i]:
            rest = boxes[i + 1 :]
            sides = torch.minimum(boxes[i, 2:], rest[:, 2:]) - torch.maximum(boxes[i, :2], rest[:, :2])
            common = sides.clamp(min=0).prod(1)
            alive[i + 1 :] &= common <= iou_threshold * (areas[i] + areas[i + 1 :] - common)
    return order[alive]


def _roi_align(input: Any, rois: Any, scale: float, height: int, width: int, ratio: int, aligned: bool) -> torch.Tensor:
    return torch.empty(rois.shape[0], input.shape[1], height, width, dtype=input.dtype, device="meta")


def _roi_align_backward(grad: Any, rois: Any, scale: float, *sizes: Any) -> torch.Tensor:
    return torch.empty(sizes[2:6], dtype=grad.dtype, device="meta")


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.shape, ctx.options = inputs[0].shape, inputs[2:]
    ctx.save_for_backward(inputs[1])


def _gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    scale, height, width, ratio, aligned = ctx.options
    made = torch.ops.torchvision._roi_align_backward(
        grad, ctx.saved_tensors[0], scale, height, width, *ctx.shape, ratio, aligned
    )
    return (made, None, None, None, None, None, None)
