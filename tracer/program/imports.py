"""Definitions that must exist before a job imports its packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

# torchvision operators named by its Python code at import; a torch without CUDA lacks them with a CUDA build of
# torchvision.
_TORCHVISION_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
)


def define_torchvision_operators() -> bool:
    """Define the operators that torchvision needs at import, if its own library does not load.

    Returns whether that was necessary.
    """
    import torch

    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _KEPT:
        return bool(_KEPT)
    try:
        for path in Path(found.origin).parent.glob("_C.*"):
            torch.ops.load_library(str(path))
    except OSError:  # compiled for another build of torch
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _TORCHVISION_SCHEMAS:
            library.define(schema)
        _KEPT.append(library)
    return bool(_KEPT)


_KEPT: list[Any] = []
