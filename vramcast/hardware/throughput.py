"""How fast a card is at its best, and how long an operator takes there: a roofline.

    time = max(operations / peak, bytes / bandwidth) + launch

The memory's bandwidth follows from the numbers in devices.py; the peaks are the makers' own, dense, with float32 accumulation.
A real kernel reaches a part of either, so that a real operator takes longer: time to hide a copy behind is understated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.hardware.devices import Device

LAUNCH_US: Final = 5  # arbitrary: from one kernel's begin to the next one's where both are tiny; public timings say 2 to 10
_DATA_RATE: Final = 2  # spec: transfers a clock of HBM and of GDDR, as NVML and deviceQuery count clocks


@dataclass(frozen=True, slots=True)
class Peak:
    """Operations a second in 10^12 (a multiplication and an addition are two); `assumed`: computed from a related card.

    Attributes:
        fp32: Without tensor cores.
        tf32: float32 on tensor cores; as `fp32` where there is no such mode.
        half: float16 and bfloat16 on tensor cores.
    """

    fp32: float
    tf32: float
    half: float
    assumed: bool = False


PEAKS: Final[Mapping[str, Peak]] = MappingProxyType({
    "v100-16gb": Peak(15.7, 15.7, 125),  # spec: NVIDIA V100 data sheet (SXM2)
    "v100-32gb": Peak(15.7, 15.7, 125),  # spec: NVIDIA V100 data sheet (SXM2)
    "t4": Peak(8.1, 8.1, 65),  # spec: NVIDIA T4 data sheet
    "a10": Peak(31.2, 62.5, 125),  # spec: NVIDIA A10 data sheet
    "a100-40gb": Peak(19.5, 156, 312),  # spec: NVIDIA A100 data sheet
    "a100-pcie-40gb": Peak(19.5, 156, 312),  # spec: NVIDIA A100 data sheet
    "a100-80gb": Peak(19.5, 156, 312),  # spec: NVIDIA A100 data sheet
    "l4": Peak(30.3, 60, 121),  # spec: NVIDIA L4 data sheet, its sparse numbers halved
    "l40s": Peak(91.6, 183, 362),  # spec: NVIDIA L40S data sheet
    "h100": Peak(67, 494.5, 989.5),  # spec: NVIDIA H100 data sheet (SXM), its sparse numbers halved
    "h100-pcie": Peak(51, 378, 756.5),  # spec: NVIDIA H100 data sheet (PCIe), its sparse numbers halved
    "h100-nvl": Peak(60, 417.5, 835.5),  # spec: NVIDIA H100 NVL data sheet, its sparse numbers halved
    "h200": Peak(67, 494.5, 989.5),  # spec: NVIDIA H200 data sheet, its sparse numbers halved
    "b200": Peak(75, 1125, 2250),  # spec: NVIDIA HGX B200 data sheet, an eighth of the board, sparse numbers halved
    "rtx3060": Peak(12.7, 12.7, 25.5, assumed=True),  # arbitrary: the RTX 3090's operations a clock and multiprocessor
    "rtx3090": Peak(35.6, 35.6, 71),  # spec: NVIDIA GA102 white paper
    "rtx4060": Peak(15.1, 15.1, 30.2, assumed=True),  # arbitrary: the RTX 4090's operations a clock and multiprocessor
    "rtx4080": Peak(48.7, 48.7, 97.5),  # spec: NVIDIA Ada white paper
    "rtx4090": Peak(82.6, 82.6, 165.2),  # spec: NVIDIA Ada white paper
    "rtx5080-laptop": Peak(35.1, 35.1, 70.3, assumed=True),  # arbitrary: cores, 2 operations a clock; as the RTX 5090 beside
    "rtx5090": Peak(104.8, 104.8, 209.5),  # spec: NVIDIA Blackwell white paper
})  # fmt: skip


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
        if card.key not in PEAKS:
            raise UsageError(f"No peak speed is known for device '{card.key}': use one of {', '.join(PEAKS)}.")
        return cls(card.key, PEAKS[card.key], _DATA_RATE * card.memory_clock_khz * 1000 * card.memory_bus_bits / 8)

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
