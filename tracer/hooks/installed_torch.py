"""The installed torch, where its release decides what a tracer must do."""

from __future__ import annotations

import torch

from vramcast.hardware.stack import release_of


def is_before(release: tuple[int, int]) -> bool:
    """Return whether the installed torch is older than this release; one without a version counts as new."""
    return (release_of(torch.__version__) or release) < release
