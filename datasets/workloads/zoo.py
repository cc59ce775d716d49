"""Draws of the training of ready-made image models: torchvision's (classification, some segmentation) and timm's."""

from __future__ import annotations

from dataclasses import replace

from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.image_models import SEGMENTATION, TIMM, TORCHVISION, ImageModel
from vramcast.datasets.workloads.sampling import Draw
from vramcast.datasets.workloads.sizes import JobSize, draw_batch, draw_budget, draw_fitting
from vramcast.datasets.workloads.training_options import DrawnTraining, draw_training

_SIDES = (96, 112, 128, 160, 192, 224, 256, 288, 320, 384, 448)  # arbitrary: for models that take any side
_CLASSES = {1000: 50, 100: 20, 10: 20, 2: 10}  # arbitrary: ImageNet, CIFAR-100, CIFAR-10, and two classes
_SEGMENTS = {21: 60, 150: 20, 2: 20}  # arbitrary: classes of Pascal VOC, ADE20K, a mask
_SEGMENTATION_SHARE = 0.1  # arbitrary: share of torchvision's jobs
# Their own initialization draws every weight separately, which takes seconds.
_UNINITIALISED = ("googlenet", "inception_v3")


def draw_torchvision(draw: Draw) -> Workload:
    """Return the training of a torchvision model."""
    training = draw_training(draw, convolves=True, flat=True)
    segments = draw.chance(_SEGMENTATION_SHARE)
    models = SEGMENTATION if segments else TORCHVISION
    name, model, budget = _draw_model(draw, models, training)
    classes = draw.weighted(_SEGMENTS if segments else _CLASSES)
    side, batch = _draw_input(draw, model, training, budget)
    labels = f"{batch}x{side}x{side}:int64<{classes}" if segments else f"{batch}:int64<{classes}"
    target = f"torchvision:{name}" + ('?{"init_weights":false}' if name in _UNINITIALISED else "")
    return training.workload(name, "torchvision", target, (f"{batch}x3x{side}x{side}",), labels, classes)


def draw_timm(draw: Draw) -> Workload:
    """Return the training of a timm model."""
    plain = draw_training(draw, convolves=True, flat=True, checkpoints=True)
    name, model, budget = _draw_model(draw, TIMM, plain)
    training = replace(plain, checkpointing=plain.checkpointing and model.checkpoints)
    side, batch = _draw_input(draw, model, training, budget)
    classes = draw.weighted(_CLASSES)
    batch_text = (f"{batch}x3x{side}x{side}",)
    return training.workload(name, "timm", f"timm:{name}", batch_text, f"{batch}:int64<{classes}", classes)


def _draw_model(draw: Draw, models: dict[str, ImageModel], training: DrawnTraining) -> tuple[str, ImageModel, JobSize]:
    """Return a model, and the budget left for its batch from a size drawn for the job."""
    name = draw.choice(tuple(models))
    total = draw_budget(draw)
    return name, models[name], total.less(models[name].parameters * training.bytes_per_parameter)


def _draw_input(draw: Draw, model: ImageModel, training: DrawnTraining, budget: JobSize) -> tuple[int, int]:
    """Return (side, batch) that roughly fill the budget."""

    def sample_bytes(side: int) -> float:
        # arbitrary: about the share that is left of them
        kept = model.elements_per_image * (0.3 if training.checkpointing else 1.0)
        return kept * (side / model.side) ** 2 * training.bytes_per_activation

    sides = (model.side,) if draw.chance(0.5) or not model.any_side else _SIDES
    side = draw_fitting(draw, sides, budget.batch_bytes, sample_bytes, 2, 1024)
    return side, draw_batch(draw, budget.batch_bytes, sample_bytes(side), lowest=2)
