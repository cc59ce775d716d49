"""Facts of ready-made image models for a draw: parameters, and the elements that they keep for backward (image_models.csv).

measured: on the null GPU, in float32 with SGD, torch 2.11, torchvision 0.26, timm 1.0.31; `elements` is a 32nd of the
growth of the allocated peak from 32 to 64 images, in numbers of four bytes, so that it includes convolutions' workspaces.
Models that take seconds to trace are left out.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TABLE: Final = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True, slots=True)
class ImageModel:
    """Facts of one model.

    Attributes:
        parameters: Number of parameters with 1000 classes.
        elements_per_image: Elements that it keeps for backward for each image of its own size.
        side: Side of its own images in pixels.
        any_side: Whether it takes other sides, from 96 on.
        checkpoints: Whether its switch for gradient checkpointing works.
    """

    parameters: float
    elements_per_image: float
    side: int
    any_side: bool
    checkpoints: bool


def _of(library: str) -> dict[str, ImageModel]:
    with open(_TABLE, encoding="utf-8", newline="") as file:
        return {
            row["name"]: ImageModel(
                float(row["millions"]) * 1e6,
                float(row["millions_per_image"]) * 1e6,
                int(row["side"]),
                row["any_side"] == "1",
                row["checkpoints"] == "1",
            )
            for row in csv.DictReader(file)
            if row["library"] == library
        }


TORCHVISION: Final = _of("torchvision")
SEGMENTATION: Final = _of("segmentation")  # torchvision's too
TIMM: Final = _of("timm")
