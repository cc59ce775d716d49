"""Models with value-dependent shapes: detectors and experts on the null GPU, on fake tensors, and for real on the CPU.

    python -m benchmarks.surveys.value_models [--only TEXT] [--tracer nullgpu --tracer fake --tracer cpu]

Prints a Markdown table of `reserved` in MiB, with the upper bound of the null GPU's answer. The CPU's run has real values.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import tables
from vramcast.core.errors import VramcastError
from vramcast.core.units import MIB
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training

_DETECTORS = (
    "retinanet_resnet50_fpn", "fcos_resnet50_fpn", "ssd300_vgg16", "ssdlite320_mobilenet_v3_large", "fasterrcnn_resnet50_fpn",
    "fasterrcnn_mobilenet_v3_large_320_fpn", "maskrcnn_resnet50_fpn_v2", "keypointrcnn_resnet50_fpn",
)  # fmt: skip
_EXPERTS = """
import transformers

def build(kind, **options):
    config = getattr(transformers, kind + "Config")(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=1000, **options)
    return getattr(transformers, kind + "ForCausalLM")(config)

def mixtral(): return build("Mixtral", num_local_experts=8)
def mixtral_eager(): return build("Mixtral", num_local_experts=8, experts_implementation="eager")
def qwen2_moe_eager(): return build("Qwen2Moe", num_experts=8, moe_intermediate_size=512, experts_implementation="eager")
"""
TRACERS = ("nullgpu", "fake", "cpu")


def _detection_batch(name: str) -> Any:
    """Return (images, targets): two images with three boxes each."""
    boxes = struct.pack("12f", *(10, 10, 100, 100), *(50, 60, 200, 220), *(5, 5, 50, 300))  # arbitrary
    target = {"boxes": TensorSpec((3, 4), content=boxes), "labels": TensorSpec((3,), "int64", fill=1)}
    if name.startswith("mask"):
        target["masks"] = TensorSpec((3, 320, 320), "uint8")
    if name.startswith("keypoint"):
        target["keypoints"] = TensorSpec((3, 17, 3), fill=1)  # spec: COCO's 17 points as x, y, visible
    return [TensorSpec((3, 320, 320))] * 2, [dict(target) for _ in range(2)]


def jobs(experts: Path) -> Iterator[tuple[str, Job]]:
    """Yield (name, job)."""
    training = Training(optimizer="adamw", steps=2)
    common: dict[str, Any] = {"device": device("a100-40gb"), "training": training, "search_path": tuple(sys.path)}
    for name in _DETECTORS:
        yield name, Job(target=f"torchvision:{name}", batch=_detection_batch(name), **common)
    experts.write_text(_EXPERTS)
    for name in ("mixtral", "mixtral_eager", "qwen2_moe_eager"):
        yield name, Job(target=f"{experts}:{name}", batch={"input_ids": TensorSpec((8, 256), "int64", high=1000)}, **common)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="only models whose name contains ONLY")
    parser.add_argument("--tracer", action="append", choices=TRACERS)
    options = parser.parse_args()
    tracers = options.tracer or list(TRACERS)
    print(tables.heading(("model", *(f"{tracer}, MiB" for tracer in tracers), "upper bound of the first")))
    with tempfile.TemporaryDirectory() as folder:
        for name, job in jobs(Path(folder) / "experts.py"):
            if options.only not in name:
                continue
            cells, bound = [], ""
            for tracer in tracers:
                try:
                    found = Estimator(tracer=tracer).estimate_job(job)
                except VramcastError as error:
                    print(f"{name}, {tracer}: {error}", file=sys.stderr)
                    cells.append("-")
                    continue
                cells.append(f"{found.reserved / MIB:.0f}")
                bound = bound or f"{found.upper_bound / MIB:.0f}"
            print(tables.row(name, *cells, bound), flush=True)


if __name__ == "__main__":
    os.chdir("/")
    main()
