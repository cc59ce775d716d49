"""Widths of the bounds of 22 networks with convolutions and 12 without, with the shipped artifact.

    python -m benchmarks.accuracy.widths [--artifact DIR] [--on CARD]

Width is bound / estimate - 1: of the reserved peak, which is what an artifact learns about, and of the process, whose context
is another's measurement until a site measures its own. Each network trains on 64 images of its own size, or on 16 lines of
text, and is traced once.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

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
}  # fmt: skip  # arbitrary: one of each family
_OTHERS: Final = {
    "torchvision": ("vit_b_16", "swin_t"),
    "timm": ("mixer_b16_224", "deit3_small_patch16_224", "beit_base_patch16_224"),
    "hf": ("gpt2", "bert", "roberta", "opt", "albert", "gpt_neo", "electra"),  # model types
}
LEVELS: Final = (0.9, 0.95)
_BATCHES: Final = {"torchvision": 64, "timm": 64, "hf": 16}  # arbitrary
_TOKENS: Final = 256  # arbitrary


def networks(kinds: Mapping[str, tuple[str, ...]]) -> dict[str, Callable[..., Any]]:
    """Return the estimate of each network by name."""
    found: dict[str, Callable[..., Any]] = {}
    for library, names in kinds.items():
        for name in names:
            sizes: dict[str, Any] = {"batch_size": _BATCHES[library]} | ({"seq": _TOKENS} if library == "hf" else {})
            found[f"{library}:{name}"] = functools.partial(vramcast.estimate, f"{library}:{name}", optimizer="sgd", **sizes)
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
