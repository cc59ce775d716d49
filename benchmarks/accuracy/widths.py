"""Widths of the bounds of 29 networks with convolutions and 12 without, with the shipped artifact.

    python -m benchmarks.accuracy.widths [--artifact DIR] [--on CARD]

Width is bound / estimate - 1: of the reserved peak, which is what an artifact learns about, and of the process, whose context
is another's measurement until a site measures its own. Each network trains on 64 images of its own size (diffusers': on 4), or
on 16 lines of text, and is traced once. Those of Ultralytics need `pip install ultralytics`.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

import vramcast
from benchmarks.tables import table
from vramcast.estimates.bounds.learned import LearnedBound

_CONVOLUTIONS: Final = {
    "torchvision": (
        "resnet50", "alexnet", "vgg16", "inception_v3", "densenet121", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny",
        "regnet_y_8gf", "shufflenet_v2_x1_0", "resnext50_32x4d", "squeezenet1_1", "googlenet", "mnasnet1_0",
    ),
    "timm": (
        "resnetv2_50", "tf_efficientnetv2_s", "repvgg_b1", "dla60", "cspdarknet53", "xception41", "hrnet_w18",
        "coatnet_0_rw_224",
    ),
    "diffusers": ("google/ddpm-cat-256", "stabilityai/sd-vae-ft-mse", "stable-diffusion-v1-5/stable-diffusion-v1-5"),
    "ultralytics": ("yolo11n", "yolov8s", "yolov5m", "yolov10n"),
}  # fmt: skip  # arbitrary: one of each family
_OTHERS: Final = {
    "torchvision": ("vit_b_16", "swin_t"),
    "timm": ("mixer_b16_224", "deit3_small_patch16_224", "beit_base_patch16_224"),
    "hf": ("gpt2", "bert", "roberta", "opt", "albert", "gpt_neo", "electra"),  # model types
}
LEVELS: Final = (0.9, 0.95)
_BATCHES: Final = {"torchvision": 64, "timm": 64, "diffusers": 4, "ultralytics": 64, "hf": 16}  # arbitrary
_TOKENS: Final = 256  # arbitrary
_PIXELS: Final = 640  # spec: Ultralytics' default size of an image
_BOXES: Final = 8  # arbitrary: in each image


def _yolo(name: str) -> Any:
    """Return a network of Ultralytics, from its configuration file, that computes its own loss."""
    from ultralytics.cfg import get_cfg
    from ultralytics.nn.tasks import DetectionModel

    network = DetectionModel(f"{name}.yaml", verbose=False)
    network.args = get_cfg()  # the weights of the parts of the loss
    return network


def _annotated(images: int) -> tuple[dict[str, Any], ...]:
    """Return a batch of images with boxes, as Ultralytics' loader makes it."""
    boxes = images * _BOXES
    return (
        {
            "img": vramcast.TensorSpec((images, 3, _PIXELS, _PIXELS)),
            "batch_idx": torch.arange(images).repeat_interleave(_BOXES),
            "cls": torch.zeros(boxes, 1),
            "bboxes": torch.rand(boxes, 4),
        },
    )


def _estimate(library: str, name: str) -> functools.partial[vramcast.Estimate]:
    """Return the estimate of a network."""
    if library == "ultralytics":
        return functools.partial(vramcast.estimate, functools.partial(_yolo, name), _annotated(_BATCHES[library]))
    seq = _TOKENS if library == "hf" else None
    return functools.partial(vramcast.estimate, f"{library}:{name}", batch_size=_BATCHES[library], seq=seq)


def networks(kinds: Mapping[str, tuple[str, ...]]) -> dict[str, functools.partial[vramcast.Estimate]]:
    """Return the estimate of each network by name."""
    found: dict[str, functools.partial[vramcast.Estimate]] = {}
    for library, names in kinds.items():
        if library == "ultralytics" and importlib.util.find_spec(library) is None:
            print("Networks of Ultralytics are left out: pip install ultralytics\n")
            continue
        for name in names:
            found[f"{library}:{name}"] = functools.partial(_estimate(library, name), optimizer="sgd")
    return found


def widths_of(found: vramcast.Estimate) -> list[float]:
    """Return the widths of an estimate's bounds of the reserved peak, and of the process, at `LEVELS` and its default level."""
    assert isinstance(found.bound, LearnedBound)
    levels = (*LEVELS, found.level)
    learned, subject = found.bound.learned, found.bound.subject
    reserved = [one.size_bytes / found.reserved - 1 for one in learned.bounds(subject, levels)]
    return [*reserved, *(found.bound_at(level) / found.process - 1 for level in levels)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--artifact", metavar="DIR", help="instead of the shipped one")
    parser.add_argument("--on", default="a100-40gb", metavar="CARD")
    options = parser.parse_args()
    columns = [
        "network",
        "default level",
        *(f"{what}, {level}" for what in ("reserved", "process") for level in (*LEVELS, "default")),
    ]
    for title, kinds in (("with convolutions", _CONVOLUTIONS), ("without", _OTHERS)):
        lines, all_widths = [], []
        for name, estimated in networks(kinds).items():
            found = estimated(device=options.on, artifact=options.artifact)
            all_widths.append(widths_of(found))
            lines.append([name, found.bound.support.words(found.level), *(f"{100 * width:.1f} %" for width in all_widths[-1])])
        for word, values in (("median", np.median(all_widths, axis=0)), ("p90", np.quantile(all_widths, 0.9, axis=0))):
            lines.append([f"{word}, {title}", "", *(f"{100 * width:.1f} %" for width in values.tolist())])
        print(table(columns, lines) + "\n")


if __name__ == "__main__":
    main()
