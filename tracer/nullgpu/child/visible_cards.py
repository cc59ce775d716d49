"""The cards that a job sees: those of its own ranks, whatever the caller's shell selects."""

from __future__ import annotations

import os

from vramcast.jobs.caller_variables import VISIBLE_CARDS
from vramcast.tracer.hooks import torch_api


def show(count: int) -> None:
    """Show a job its own cards; what it selects itself later counts (`device.c`).

    Args:
        count: Number of cards of its machine.
    """
    if VISIBLE_CARDS in os.environ:
        os.environ[VISIBLE_CARDS] = ",".join(map(str, range(count)))
    for owner, name in torch_api.places("count_by_nvml"):
        setattr(owner, name, lambda: -1)  # spec: unknown, so that PyTorch asks the runtime; NVML knows numbers of real cards
