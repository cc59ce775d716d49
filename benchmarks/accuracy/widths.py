"""Widths of the bounds of ten networks with convolutions, batch 32 on an A100, with the shipped artifact.

    python -m benchmarks.accuracy.widths [--artifact DIR]

Width is bound / estimate - 1, of the whole process. Each network is traced once.
"""

from __future__ import annotations

import argparse
from typing import Final

import numpy as np

import vramcast
from benchmarks.tables import table

NETWORKS: Final = (
    "resnet50", "alexnet", "vgg16", "inception_v3", "densenet121", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny",
    "regnet_y_8gf", "shufflenet_v2_x1_0",
)  # fmt: skip  # arbitrary: one of each of torchvision's families, ResNet-50 first
LEVELS: Final = (0.9, 0.95, 0.99)
_BATCH: Final = 32
_SIDES: Final = {"inception_v3": 299}  # spec: its own size; the others take 224


def widths_of(network: str, artifact: str | None) -> list[float]:
    """Return the widths of a network's bounds at `LEVELS`."""
    side = _SIDES.get(network, 224)
    batch = f"{_BATCH}x3x{side}x{side}"
    found = vramcast.estimate(f"torchvision:{network}", batch, device="a100-40gb", optimizer="sgd", artifact=artifact)
    return [found.quantile(level) / found.process - 1 for level in LEVELS]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--artifact", metavar="DIR", help="instead of the shipped one")
    options = parser.parse_args()
    found = {network: widths_of(network, options.artifact) for network in NETWORKS}
    found["median"] = np.median(list(found.values()), axis=0).tolist()
    lines = [[name, *(f"{100 * width:.1f} %" for width in widths)] for name, widths in found.items()]
    print(table(["network", *(f"width at {level:g}" for level in LEVELS)], lines))


if __name__ == "__main__":
    main()
