"""The scale of a residual: additive for small peaks, relative for large ones.

    residual = log((measured + offset) / (base + offset))

A library's handle or a segment more is a large share of a small job's memory, and says nothing about a large one's.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.core.units import MIB

OFFSET_BYTES: Final = 512 * MIB  # arbitrary: where both kinds count alike; a third of jobs that people ask for are smaller
Sizes: TypeAlias = float | npt.NDArray[np.float64]


def residual_of(measured: Sizes, base: Sizes, offset: int) -> Sizes:
    """Return the residual of a measured peak, in bytes, above or below its base."""
    return np.log((measured + offset) / (base + offset))


def peak_of(residual: Sizes, base: Sizes, offset: int) -> Sizes:
    """Return the peak with a residual, in bytes."""
    return (base + offset) * np.exp(residual) - offset
