"""Inputs of transformers' vision models: images or clips of the configuration's size, and labels by the task of the class."""

from __future__ import annotations

from typing import Any, Final

from vramcast.jobs.job import TensorSpec
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.program.task_inputs.hf_model import HfModel
from vramcast.tracer.program.task_inputs.taken import several

_IMAGE_SIZE: Final = 224  # spec: the size of transformers' image processors for ResNet, ConvNeXT and most others
_DENSE_SIZE: Final = 512  # spec: SegformerImageProcessor.size
_COCO_SIZE: Final = (800, 1066)  # spec: DetrImageProcessor.size, a short edge of 800, for COCO's usual 480 x 640
OBJECTS: Final = 8  # spec: Lin et al. 2014: COCO has 7.7 objects in an image
_CLASSES: Final = ("IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION")
_DENSE: Final = ("SEMANTIC_SEGMENTATION", "UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "DEPTH_ESTIMATION")


def inputs(of: HfModel) -> Inputs:
    """Return the inputs of a model that reads images alone."""
    height, width = image_size(of, of.config)
    n = of.taken.batch_size
    channels = getattr(of.config, "num_channels", None) or 3
    if of.is_for("VIDEO_CLASSIFICATION") or ("video" in _modalities(of) and "image" not in _modalities(of)):
        if (frames := getattr(of.config, "num_frames", None)) is None:
            of.refuse("its configuration names no number of frames (num_frames)")
        clips = of.floats(n, frames, channels, height, width)
        batch, words = {"pixel_values": clips}, f"{several(n, 'clip')} of {frames} images of {height} x {width}"
    else:
        batch, words = {"pixel_values": of.floats(n, channels, height, width)}, f"{several(n, 'image')} of {height} x {width}"
    if of.is_training:
        batch |= _labels(of, n, height, width)
    return of.taken.inputs(batch | with_other_size(of, of.config), None, words)


def _modalities(of: HfModel) -> tuple[str, ...]:
    named = getattr(of.model, "input_modalities", ())
    return (named,) if isinstance(named, str) else tuple(named)


def image_size(of: HfModel, config: Any) -> tuple[int, int]:
    """Return height and width of a model's images: as asked, those of its configuration, or the usual ones of its task."""
    own = getattr(config, "image_size", None)
    if isinstance(own, int):
        return of.taken.image(own)
    if isinstance(own, list | tuple) and len(own) == 2:
        return of.taken.image(int(own[0]), int(own[1]))
    if of.is_for("OBJECT_DETECTION"):
        return of.taken.image(*_COCO_SIZE)
    return of.taken.image(_DENSE_SIZE if of.is_for(*_DENSE) else _IMAGE_SIZE)


def with_other_size(of: HfModel, config: Any) -> dict[str, Any]:
    """Return the argument that a model needs for images of another size than its configuration's."""
    is_other = of.taken.asked.image_size not in (None, getattr(config, "image_size", None))
    return {"interpolate_pos_encoding": True} if is_other and of.takes("interpolate_pos_encoding") else {}


def _labels(of: HfModel, n: int, height: int, width: int) -> dict[str, Any]:
    """Return the arguments that make a model's forward return its loss; none: it has no loss of its own."""
    if of.takes("mask_labels", "class_labels"):
        masks = [of.floats(OBJECTS, height, width) for _ in range(n)]
        return {"mask_labels": masks, "class_labels": [of.classes(OBJECTS) for _ in range(n)]}
    if of.is_for("OBJECT_DETECTION"):
        objects = {"class_labels": of.classes(OBJECTS), "boxes": TensorSpec((OBJECTS, 4))}
        return {"labels": [dict(objects) for _ in range(n)]}
    if not of.takes("labels"):
        return {}
    if of.is_for(*_CLASSES):
        return {"labels": of.classes(n)}
    if of.is_for("SEMANTIC_SEGMENTATION"):
        return {"labels": TensorSpec((n, height, width), "int64", high=max(2, of.config.num_labels))}
    if of.is_for("DEPTH_ESTIMATION"):
        return {"labels": of.floats(n, height, width)}
    return of.refuse("the labels of its task are unknown")
