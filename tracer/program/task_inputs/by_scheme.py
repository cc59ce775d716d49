"""The inputs of a registry's model by its task, made in the job's process, where the model exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from vramcast.core.errors import UsageError
from vramcast.jobs.job import Job
from vramcast.jobs.sizes import Inputs
from vramcast.jobs.targets import Target
from vramcast.tracer.program.task_inputs import diffusers_models, hugging_face, timm_models, torchvision_models

# A function for each scheme of a TARGET: from the built model and its job to the inputs; the job's `sizes` are as asked.
_SCHEMES: Final[dict[str, Callable[[torch.nn.Module, Job], Inputs]]] = {
    "diffusers": diffusers_models.inputs,
    "hf": hugging_face.inputs,
    "timm": timm_models.inputs,
    "torchvision": torchvision_models.inputs,
}


def inputs_of(job: Job, model: torch.nn.Module) -> Inputs | None:
    """Return the inputs that a job's sizes give; None: the job has its batch.

    Args:
        job: The job.
        model: Its module, on the CPU.
    Raises:
        UsageError: The inputs cannot be derived, or the model has no use for one of the sizes.
    """
    if job.sizes is None or job.batch is not None:
        return None
    make = _SCHEMES.get(Target.parse(job.target or "").scheme)
    if make is None:
        raise UsageError(f"The inputs of '{job.target}' are unknown: give each tensor, for example --batch 32x3x224x224.")
    return make(model, job)
