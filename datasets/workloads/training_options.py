"""Training options of a drawn network: precision, optimizer, memory format, allocator settings; and their approximate cost.

The costs are closed forms that only steer the draw towards a size: nothing else may use them as an estimate.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.sampling import Draw
from vramcast.jobs.job import TRAINING_FIELDS, Training
from vramcast.jobs.optimizers import state_tensors

STEPS = 4  # arbitrary: at least 3; the optimizer's state appears at the end of the first

_WEIGHTS: Final[dict[str, dict[Any, float]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTraining(Training):
    """The training options of a network, and the allocator's settings."""

    alloc_conf: str

    @property
    def bytes_per_parameter(self) -> float:
        """The approximate bytes per parameter: itself, gradient, optimizer state and temporaries, autocast's copy."""
        optimizer = str(self.optimizer)
        states = state_tensors(optimizer)
        tensors = 2 + states + (1 if ":" not in optimizer and states else 0)  # the foreach implementation has temporaries
        return tensors * (2 if self.precision == "bf16" else 4) + (2 if self.precision.startswith("amp") else 0)

    @property
    def bytes_per_activation(self) -> float:
        """The approximate bytes per element kept for backward; autocast keeps some in float32."""
        return {"fp32": 4.0, "amp-bf16": 2.6, "amp-fp16": 2.6, "bf16": 2.0}[self.precision]

    def workload(
        self, name: str, family: str, target: str, batch: tuple[str, ...], labels: str | None, classes: int | None = None
    ) -> Workload:
        """Return the workload of a network of the given family with these options."""
        return Workload(
            name=name,
            family=family,
            target=target,
            batch=batch,
            labels=labels,
            num_classes=classes,
            alloc_conf=self.alloc_conf,
            **{option: getattr(self, option) for option in TRAINING_FIELDS},
        )


def draw_training(
    draw: Draw, *, convolves: bool = False, flat: bool = False, checkpoints: bool = False, low: bool = False
) -> DrawnTraining:
    """Return training options.

    Args:
        draw: Source of the choices.
        convolves: The network has convolutions: cuDNN may search for algorithms.
        flat: Its input is images (N x C x H x W), which may be in channels-last format.
        checkpoints: It has a switch for gradient checkpointing.
        low: It is so large that it is mostly trained in bfloat16.
    """
    return DrawnTraining(
        steps=STEPS,
        optimizer=draw.weighted(_WEIGHTS["optimizer"]),
        precision=draw.weighted(_WEIGHTS["low_precision" if low else "precision"]),
        zero_grad=draw.weighted(_WEIGHTS["zero_grad"]),
        overlap_inputs=not draw.chance(0.2),
        alloc_conf=draw.weighted(_WEIGHTS["alloc_conf"]),
        checkpointing=draw.chance(0.15) and checkpoints,
        channels_last=draw.chance(0.25) and flat,
        cudnn_benchmark=draw.chance(0.1) and convolves,
    )
