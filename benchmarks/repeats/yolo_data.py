"""Stub data for Ultralytics: images of noise with a number of boxes that varies as in real data.

Ultralytics' memory depends on the number of images, and on the largest number of boxes in an image of a batch; not on pixels,
and not on the size of the source images, which it resizes.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from benchmarks.repeats.packages import FOLDER
from vramcast.core.files import digest

TASKS: Final = ("detect", "segment", "obb")
_PIXELS: Final = 64  # arbitrary: source images are resized
_SEED: Final = 0  # arbitrary
_SIDES: Final = (0.05, 0.3)  # arbitrary: of a box, as shares of the image's


@dataclass(frozen=True, slots=True)
class StubData:
    """A data set for one task.

    Attributes:
        task: "detect", "segment" or "obb".
        images: Number of training images.
        of: Number of images of the whole set, of which these are a sample.
        classes: Number of classes.
        boxes: Mean number of boxes per image.
    """

    task: str
    images: int
    of: int
    classes: int
    boxes: float


def counts(data: StubData, rng: random.Random) -> list[int]:
    """Return the number of boxes of each image: evenly spaced ones of the whole set, with its fullest image.

    They are geometric, as most data sets have a few crowded images. A mean above 1 is that of 1, 2, ...; a mean below 1 is the
    share of images with one box.
    """
    if data.boxes <= 1:
        whole = [int(rng.random() < data.boxes) for _ in range(data.of)]
    else:
        whole = [1 + _failures(rng, 1 / data.boxes) for _ in range(data.of)]
    whole.sort(reverse=True)  # the first is the fullest: reserved memory does not fall after its step
    return [whole[place * len(whole) // data.images] for place in range(data.images)]


def _failures(rng: random.Random, share: float) -> int:
    failures = 0
    while rng.random() >= share:
        failures += 1
    return failures


def _line(data: StubData, rng: random.Random) -> str:
    """Return one object in the form of its task."""
    kind, (x, y) = rng.randrange(data.classes), (rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.8))
    width, height = rng.uniform(*_SIDES), rng.uniform(*_SIDES)
    if data.task == "detect":
        return f"{kind} {x:.5f} {y:.5f} {width:.5f} {height:.5f}"
    left, right, top, bottom = x - width / 2, x + width / 2, y - height / 2, y + height / 2
    corners = (left, top, right, top, right, bottom, left, bottom)
    return " ".join([str(kind), *(f"{corner:.5f}" for corner in corners)])


def written(data: StubData) -> Path:
    """Return the `data.yaml` of a data set, which is made once."""
    folder = FOLDER / f"yolo-data-{digest(json.dumps(asdict(data), sort_keys=True), digits=12)}"
    described = folder / "data.yaml"
    if described.exists():
        return described
    rng = random.Random(_SEED)
    noise = np.random.default_rng(_SEED)
    for part, numbers in (("train", counts(data, rng)), ("val", [1])):
        images, labels = folder / part / "images", folder / part / "labels"
        images.mkdir(parents=True, exist_ok=True)
        labels.mkdir(parents=True, exist_ok=True)
        for name, number in enumerate(numbers):
            pixels = noise.integers(0, 255, (_PIXELS, _PIXELS, 3), np.uint8)
            Image.fromarray(pixels).save(images / f"{name}.png")
            (labels / f"{name}.txt").write_text("\n".join(_line(data, rng) for _ in range(number)))
    names = "".join(f"  {number}: c{number}\n" for number in range(data.classes))
    described.write_text(f"path: {folder}\ntrain: train/images\nval: val/images\nnames:\n{names}")
    return described
