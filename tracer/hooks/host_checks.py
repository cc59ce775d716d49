"""Checks in PyTorch's Python code that read their answer back from the device, where every value reads as zero.

They would stop a correct job, so they are assumed to pass. Their allocations, a mask or a few short-lived integers, are
missing from the trace.
"""

from __future__ import annotations

import torch

from vramcast.tracer.hooks.torch_api import places


def take_as_passed() -> None:
    """Switch the checks off in this process; for the child that runs one job.

    1. torch.distributions: arguments must lie in their domain, `constraint.check(value).all()`. `python -O` does the same.
    2. DistributedDataParallel: all ranks must have the same number of parameters and shapes, gathered through the device.
    """
    torch.distributions.Distribution.set_default_validate_args(False)
    if torch.distributed.is_available():
        for owner, name in places("verify_shapes_across_ranks"):
            setattr(owner, name, lambda *_, **__: None)
