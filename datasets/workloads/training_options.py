"""How a drawn network is trained: precision, optimizer, order of things, allocator settings; and about what that costs.

The costs are closed forms which only steer the draw towards a size: nothing else may use them as an estimate.
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
    """How a network is trained, and under which settings of the allocator."""

    alloc_conf: str

    @property
    def bytes_per_parameter(self) -> float:
        """About what a parameter takes: itself, its gradient, the optimizer's state and temporaries, autocast's copy."""
        optimizer = str(self.optimizer)
        states = state_tensors(optimizer)
        tensors = 2 + states + (1 if ":" not in optimizer and states else 0)  # the foreach way has temporaries
        return tensors * (2 if self.precision == "bf16" else 4) + (2 if self.precision.startswith("amp") else 0)

    @property
    def bytes_per_activation(self) -> float:
        """About what an element kept for backward takes; autocast keeps some in float32."""
        return {"fp32": 4.0, "amp-bf16": 2.6, "amp-fp16": 2.6, "bf16": 2.0}[self.precision]

    def workload(
        self, name: str, family: str, target: str, batch: tuple[str, ...], labels: str | None, classes: int | None = None
    ) -> Workload:
        """Return the workload of a network, of the given family, trained in this way."""
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
    """Return a way to train.

    Args:
        draw: Where the choices come from.
        convolves: The network has convolutions: cuDNN may search for algorithms.
        flat: Its input is images (N x C x H x W): they may lie channels last.
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
