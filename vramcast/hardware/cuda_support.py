"""Cards that the installed CUDA no longer supports, known before a job runs."""

from __future__ import annotations

import functools
from importlib import metadata

from vramcast.core.errors import UsageError
from vramcast.core.units import gib
from vramcast.hardware.device import Device

_DROPPED = {13: (7, 5)}  # spec: CUDA 13.0 release notes: Maxwell, Pascal, and Volta are no longer supported
_INSTEAD = "t4"  # arbitrary: the oldest supported card in common use


@functools.cache
def installed_cuda() -> int:
    """Return the major version of CUDA that the installed torch brought; 0 if it brought none, or an older one."""
    try:
        return int(metadata.version("nvidia-cuda-runtime").partition(".")[0])  # spec: its name since CUDA 13
    except (metadata.PackageNotFoundError, ValueError):
        return 0


def is_dropped(card: Device) -> bool:
    """Return whether the installed CUDA no longer supports a card."""
    return card.compute_capability < _DROPPED.get(installed_cuda(), (0, 0))


def refuse_dropped(card: Device) -> None:
    """Raise if the installed CUDA no longer supports a card.

    Raises:
        UsageError: It does not; real PyTorch would not run there either.
    """
    if is_dropped(card):
        number = ".".join(map(str, card.compute_capability))
        raise UsageError(
            f"CUDA {installed_cuda()}, which the installed torch uses, has no kernels for {card.name} (compute capability "
            f"{number}): install a build of torch for CUDA 12.6 (cu126). Or estimate for --on {_INSTEAD} --memory "
            f"{gib(card.total_bytes).replace(' ', '')}: the context and the workspaces of convolutions differ."
        )
