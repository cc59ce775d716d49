"""The import path of a job, and definitions that must exist before it imports its packages."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable
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


# Imported before the fork: a second import in one process would fail.
_LASTING = frozenset({"numpy", "torch", "vramcast"})


def look_in(folders: Iterable[str]) -> None:
    """Make `folders` the import path, and forget the packages that the worker preloaded from another place.

    Args:
        folders: The job's own path; empty: the worker's.
    """
    own, sys.path[:] = set(sys.path), [*folders] or sys.path
    new = [Path(folder) for folder in sys.path if folder not in own]
    names = {entry.name for folder in new if folder.is_dir() for entry in folder.iterdir()}
    for name in (names & sys.modules.keys()) - _LASTING:
        found = importlib.machinery.PathFinder.find_spec(name)
        if found is None or found.origin != getattr(sys.modules[name], "__file__", None):
            for part in [part for part in sys.modules if part.partition(".")[0] == name]:
                del sys.modules[part]


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
