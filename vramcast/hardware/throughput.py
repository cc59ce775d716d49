"""A roofline model: the time of an operator at a card's peak speed.

    time = max(operations / peak, bytes / bandwidth) + launch

Bandwidth and peak are the card's; a peak is the maker's own, dense, with float32 accumulation.
A real kernel reaches only a part of either, so a real operator takes longer, and more time is available to hide a copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.device import Device, PeakSpeeds

LAUNCH_US: Final = 5  # arbitrary: time between the starts of two tiny kernels; public timings give 2 to 10
_DATA_RATE: Final = 2  # spec: transfers per clock of HBM and of GDDR, with clocks as in NVML and deviceQuery


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limits of an operator on one card; `duration_us` has the formula."""

    device: str
    peak: PeakSpeeds
    bytes_per_s: float

    @classmethod
    def of(cls, card: Device) -> Roofline:
        """Return the roofline of `card`.

        Raises:
            UsageError: The card's peak is unknown.
        """
        if card.peak is None:
            known = ", ".join(key for key, one in DEVICES.items() if one.peak is not None)
            raise UsageError(
                f"The peak speed of device '{card.key}' is unknown: give its peak_tflops in a file, or use one of {known}."
            )
        return cls(card.key, card.peak, _DATA_RATE * card.memory_clock_khz * 1000 * card.memory_bus_bits / 8)

    @property
    def source(self) -> str:
        """Source of the times, for results."""
        return f"roofline {self.device}" + (" (peak assumed)" if self.peak.assumed else "")

    def duration_us(self, operations: float, moved_bytes: int, unit: str) -> int:
        """Return the time of an operator in microseconds, rounded up.

        Args:
            operations: Number of operations; a multiplication and an addition count as two.
            moved_bytes: Bytes read and written in the card's memory.
            unit: The unit that computes: `fp32`, `tf32` or `half`.
        """
        rate = {"fp32": self.peak.fp32, "tf32": self.peak.tf32, "half": self.peak.half}[unit] * 1e12
        return math.ceil(1e6 * max(operations / rate, moved_bytes / self.bytes_per_s) + LAUNCH_US)
