"""Inputs of timm's models: images of the size that the model's own configuration names, with a class for each."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.jobs.job import Job, TensorSpec
from vramcast.jobs.sizes import Inputs, Sizes
from vramcast.tracer.program import meta_model
from vramcast.tracer.program.task_inputs.taken import BatchSizes, several


def inputs(model: torch.nn.Module, job: Job) -> Inputs:
    """Return the inputs; a model with a fixed image size is changed to the one asked for, as timm's `img_size` does."""
    found: Any = model
    taken = BatchSizes(job.sizes or Sizes(), job.target or "")
    channels, *size = found.pretrained_cfg["input_size"]
    own = getattr(getattr(found, "patch_embed", None), "img_size", None)  # of a model built with ?{"img_size": ...}
    height, width = taken.image(*(own or size))
    if taken.asked.image_size is not None and hasattr(found, "set_input_size"):
        with meta_model.HollowInit():
            found.set_input_size(img_size=(height, width))
    labels = None
    if job.training.mode == "train" and found.num_classes:
        labels = TensorSpec((taken.batch_size,), "int64", high=found.num_classes)
    n = taken.batch_size
    return taken.inputs(TensorSpec((n, channels, height, width)), labels, f"{several(n, 'image')} of {height} x {width}")
