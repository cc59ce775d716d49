"""How fast a card is at its best, and how long an operator takes there: a roofline.

    time = max(operations / peak, bytes / bandwidth) + launch

Bandwidth and peak are the card's; a peak is the maker's own, dense, with float32 accumulation.
A real kernel reaches a part of either, so that a real operator takes longer: time to hide a copy behind is understated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.device import Device, Peak

LAUNCH_US: Final = 5  # arbitrary: from one kernel's begin to the next one's where both are tiny; public timings say 2 to 10
_DATA_RATE: Final = 2  # spec: transfers a clock of HBM and of GDDR, as NVML and deviceQuery count clocks


@dataclass(frozen=True, slots=True)
class Roofline:
    """What bounds an operator on one card; `duration_us` has the formula."""

    device: str
    peak: Peak
    bytes_per_s: float

    @classmethod
    def of(cls, card: Device) -> Roofline:
        """Return the roofline of `card`.

        Raises:
            UsageError: no peak is known for it.
        """
        if card.peak is None:
            known = ", ".join(key for key, one in DEVICES.items() if one.peak is not None)
            raise UsageError(
                f"No peak speed is known for device '{card.key}': give its peak_tflops in a file, or use one of {known}."
            )
        return cls(card.key, card.peak, _DATA_RATE * card.memory_clock_khz * 1000 * card.memory_bus_bits / 8)

    @property
    def source(self) -> str:
        """What a result says of its times."""
        return f"roofline {self.device}" + (" (peak assumed)" if self.peak.assumed else "")

    def duration_us(self, operations: float, moved_bytes: int, unit: str) -> int:
        """Return how long an operator takes, in whole microseconds, rounded up.

        Args:
            operations: A multiplication and an addition are two.
            moved_bytes: Read and written in the card's memory.
            unit: What computes: `fp32`, `tf32` or `half`.
        """
        rate = {"fp32": self.peak.fp32, "tf32": self.peak.tf32, "half": self.peak.half}[unit] * 1e12
        return math.ceil(1e6 * max(operations / rate, moved_bytes / self.bytes_per_s) + LAUNCH_US)
