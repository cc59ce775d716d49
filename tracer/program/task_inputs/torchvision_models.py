"""Inputs of torchvision's models, by their task. Sizes are those of the default weights' own transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from vramcast.core.errors import UsageError
from vramcast.jobs.job import Job, TensorSpec
from vramcast.jobs.sizes import Inputs, Sizes
from vramcast.jobs.targets import Target
from vramcast.tracer.program.task_inputs.taken import BatchSizes, floats, several

_FRAMES: Final = 16  # spec: torchvision, references/video_classification/train.py: --clip-len
_FLOW_SIZE: Final = (368, 496)  # spec: torchvision, references/optical_flow/train.py: crops of FlyingChairs
_COCO_SIZE: Final = (480, 640)  # measured: the usual size of COCO's images, which the model itself resizes
_OBJECTS: Final = 8  # spec: Lin et al. 2014: COCO has 7.7 objects in an image
_KEYPOINTS: Final = 17  # spec: COCO


def inputs(model: torch.nn.Module, job: Job) -> Inputs:
    """Return the inputs.

    Raises:
        UsageError: The model is quantized, has another fixed image size, or a task without usual inputs.
    """
    from torchvision import models

    name = Target.parse(job.target or "").name
    package = type(model).__module__
    if ".quantization." in package:
        raise UsageError(
            f"torchvision's {name} is for the CPU: no GPU runs or trains it. Name the model that it was quantized from: "
            f"torchvision:{name.removeprefix('quantized_')}."
        )
    taken = BatchSizes(job.sizes or Sizes(), job.target or "")
    weights: Any = next(iter(models.get_model_weights(name)), None)
    task = next((make for part, make in _TASKS.items() if part in package), _classification)
    return task(model, job, taken, weights)


def _own_size(weights: Any) -> tuple[int, int]:
    """Return height and width of the weights' images: of the crop, or of the whole image."""
    transforms = weights.transforms()
    size = getattr(transforms, "crop_size", None) or transforms.resize_size
    return size[0], size[-1]


def _labels(job: Job, weights: Any, *shape: int) -> TensorSpec | None:
    if job.training.mode == "infer":
        return None
    return TensorSpec(shape, "int64", high=_classes(job, weights))


def _classes(job: Job, weights: Any) -> int:
    stated = Target.parse(job.target or "").options.get("num_classes")
    return int(job.num_classes or stated or len(weights.meta["categories"]))


def _classification(model: Any, job: Job, taken: BatchSizes, weights: Any) -> Inputs:
    fixed = getattr(model, "image_size", None)  # of a vision transformer
    height, width = taken.image(*((fixed, fixed) if fixed else _own_size(weights)))
    if fixed and height != fixed:
        raise UsageError(
            f"{job.target} takes images of {fixed} x {fixed} alone: build it for another size, "
            f"'torchvision:{Target.parse(job.target or '').name}?{{\"image_size\": {height}}}'."
        )
    n = taken.batch_size
    return taken.inputs(
        TensorSpec((n, 3, height, width)), _labels(job, weights, n), f"{several(n, 'image')} of {height} x {width}"
    )


def _segmentation(model: Any, job: Job, taken: BatchSizes, weights: Any) -> Inputs:
    height, width = taken.image(*_own_size(weights))
    n = taken.batch_size
    return taken.inputs(
        TensorSpec((n, 3, height, width)),
        _labels(job, weights, n, height, width),
        f"{several(n, 'image')} of {height} x {width}",
    )


def _video(model: Any, job: Job, taken: BatchSizes, weights: Any) -> Inputs:
    height, width = taken.image(*_own_size(weights))
    n, frames = taken.batch_size, max(_FRAMES, weights.meta.get("min_temporal_size", 0))
    clips = TensorSpec((n, 3, frames, height, width))
    return taken.inputs(clips, _labels(job, weights, n), f"{several(n, 'clip')} of {frames} images of {height} x {width}")


def _optical_flow(model: Any, job: Job, taken: BatchSizes, weights: Any) -> Inputs:
    height, width = taken.image(*_FLOW_SIZE)
    n = taken.batch_size
    images = TensorSpec((n, 3, height, width))
    flow = TensorSpec((n, 2, height, width)) if job.training.mode == "train" else None
    return taken.inputs((images, images), flow, f"{several(n, 'pair')} of images of {height} x {width}")


def _detection(model: Any, job: Job, taken: BatchSizes, weights: Any) -> Inputs:
    """Return a list of images, and for training a list of the objects in each."""
    fixed = model.transform.fixed_size
    height, width = taken.image(*(fixed[::-1] if fixed else _COCO_SIZE))
    n = taken.batch_size
    images = [TensorSpec((3, height, width)) for _ in range(n)]
    text = f"{several(n, 'image')} of {height} x {width}"
    if job.training.mode == "infer":
        return taken.inputs((images,), None, text)
    boxes = [(width * k / 16, height * k / 16, width * (k + 8) / 16, height * (k + 8) / 16) for k in range(_OBJECTS)]
    target = {
        "boxes": floats((_OBJECTS, 4), [edge for box in boxes for edge in box]),
        "labels": TensorSpec((_OBJECTS,), "int64", high=_classes(job, weights)),
    }
    heads = getattr(model, "roi_heads", None)
    if getattr(heads, "mask_predictor", None) is not None:
        target["masks"] = TensorSpec((_OBJECTS, height, width), "uint8", high=2)
    if getattr(heads, "keypoint_predictor", None) is not None:
        centers = [((left + right) / 2, (top + bottom) / 2, 1.0) for left, top, right, bottom in boxes]
        values = [value for center in centers for _ in range(_KEYPOINTS) for value in center]
        target["keypoints"] = floats((_OBJECTS, _KEYPOINTS, 3), values)
    return taken.inputs((images, [dict(target) for _ in range(n)]), None, f"{text} with {_OBJECTS} objects in each")


# By the package of the model's class; others classify images.
_TASKS: Final[dict[str, Callable[[Any, Job, BatchSizes, Any], Inputs]]] = {
    ".segmentation.": _segmentation,
    ".detection.": _detection,
    ".video.": _video,
    ".optical_flow.": _optical_flow,
}
