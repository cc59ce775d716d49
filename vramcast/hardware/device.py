"""A model of card, in the numbers that the null GPU and cuDNN's deviceless mode report; cards.toml has the cards."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.core.units import MIB

# guide: CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability"; 6.0: of 12.9
WARP_SIZE = 32  # spec: guide
THREADS_PER_BLOCK = 1024  # spec: guide
SHARED_PER_BLOCK_BYTES = 49_152  # spec: guide (without opting in)
REGISTERS_PER_BLOCK = 65_536  # spec: guide
REGISTERS_PER_SM = 65_536  # spec: guide
MAX_GRID = (2_147_483_647, 65_535, 65_535)  # spec: guide
MAX_BLOCK = (1024, 1024, 64)  # spec: guide
SMALLEST_BYTES = 256 * MIB  # arbitrary: smaller than any supported card; a size given in MiB or KiB by mistake is below it


def squeezed(name: str) -> str:
    """Return a card's name without case, maker, product line and separators: `NVIDIA GeForce RTX 4090` -> `rtx4090`."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


@dataclass(frozen=True, slots=True)
class ComputeLimits:
    """Limits that depend only on the compute capability."""

    shared_per_sm_bytes: int
    shared_per_block_optin_bytes: int
    reserved_shared_per_block_bytes: int
    threads_per_sm: int
    blocks_per_sm: int


LIMITS: dict[tuple[int, int], ComputeLimits] = {
    (6, 0): ComputeLimits(65_536, 49_152, 0, 2048, 32),  # spec: guide
    (7, 0): ComputeLimits(98_304, 98_304, 0, 2048, 32),  # spec: guide
    (7, 5): ComputeLimits(65_536, 65_536, 0, 1024, 16),  # spec: guide
    (8, 0): ComputeLimits(167_936, 166_912, 1024, 2048, 32),  # spec: guide
    (8, 6): ComputeLimits(102_400, 101_376, 1024, 1536, 16),  # spec: guide
    (8, 7): ComputeLimits(167_936, 166_912, 1024, 1536, 16),  # spec: guide
    (8, 9): ComputeLimits(102_400, 101_376, 1024, 1536, 24),  # spec: guide
    (9, 0): ComputeLimits(233_472, 232_448, 1024, 2048, 32),  # spec: guide
    (10, 0): ComputeLimits(233_472, 232_448, 1024, 2048, 32),  # spec: guide
    (12, 0): ComputeLimits(102_400, 101_376, 1024, 1536, 24),  # spec: guide
}

_CUDA_VERSION = 13_000  # arbitrary: the driver's version in the record, as 1000 * major + 10 * minor
_IN_CONFIG = (  # fields with the same names in the null GPU
    "sm_count", "clock_khz", "memory_clock_khz", "memory_bus_bits", "l2_bytes", "shared_per_sm_bytes",
    "shared_per_block_optin_bytes", "threads_per_sm", "blocks_per_sm",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PeakSpeeds:
    """Peak speeds in 10^12 operations per second, where a multiplication and an addition count as two.

    Attributes:
        fp32: float32 without tensor cores.
        tf32: float32 on tensor cores; equal to `fp32` if there is no such mode.
        half: float16 and bfloat16 on tensor cores.
        assumed: Whether the speeds were computed from a related card.
    """

    fp32: float
    tf32: float
    half: float
    assumed: bool = False


@brief
@dataclass(frozen=True, slots=True)
class Device:
    """A model of card, as reported by `torch.cuda.get_device_properties` and to cuDNN.

    Attributes:
        key: The card's name in this project.
        name: The card's name in torch.
        total_bytes: `total_memory` in torch, the total of `cudaMemGetInfo`: after ECC and firmware, before any context.
        compute_capability: Major and minor number.
        sm_count: Number of multiprocessors.
        clock_khz: Highest SM clock.
        memory_clock_khz: Highest memory clock (half the data rate).
        memory_bus_bits: Width of the memory bus.
        l2_bytes: Size of the L2 cache.
        shared_per_sm_bytes: Shared memory of a multiprocessor.
        shared_per_block_optin_bytes: Shared memory of a block, with opt-in.
        reserved_shared_per_block_bytes: Shared memory of a block that the system reserves.
        threads_per_sm: Resident threads of a multiprocessor.
        blocks_per_sm: Resident blocks of a multiprocessor.
        assumed: Names of the fields that were neither measured nor specified for this card.
        aliases: Other names of the card.
        peak: Peak speeds, if known.
    """

    key: str
    name: str
    total_bytes: int
    compute_capability: tuple[int, int]
    sm_count: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    l2_bytes: int
    shared_per_sm_bytes: int
    shared_per_block_optin_bytes: int
    reserved_shared_per_block_bytes: int
    threads_per_sm: int
    blocks_per_sm: int
    assumed: tuple[str, ...] = ()
    # Not part of a job's key, because estimates do not depend on them.
    aliases: tuple[str, ...] = field(default=(), repr=False)
    peak: PeakSpeeds | None = field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Squeezed names of the card: key, torch's name, aliases."""
        return tuple(map(squeezed, (self.key, self.name, *self.aliases)))

    def with_memory(self, total_bytes: int) -> Device:
        """Return the same card with another size, for example that of another driver or of a MIG slice.

        Args:
            total_bytes: Torch's `total_memory`, > 0.
        Raises:
            UsageError: total_bytes <= 0.
        """
        if total_bytes <= 0:
            raise UsageError(f"Memory of {total_bytes} bytes is not positive: give torch's total_memory.")
        assumed = tuple(field for field in self.assumed if field != "total_bytes")
        return dataclasses.replace(self, total_bytes=total_bytes, assumed=assumed)

    def cudnn_record(self) -> dict[str, object]:
        """Return the device-property record of cuDNN's deviceless mode (JSON representation, cuDNN >= 9.11).

        Source: keys as required by cuDNN 9.19; constants as in XLA's BuildDeviceProperties,
        https://github.com/openxla/xla/blob/1c2a9956a0767e0fb4be9f23343e1c8a979a1b2e/xla/backends/gpu/target_config/cudnn_device_props.cc
        """
        major, minor = self.compute_capability
        return {
            "cudaDeviceId": 0,
            "pciDeviceId": 0,
            "deviceName": self.name,
            "deviceVer": 100 * major + 10 * minor,
            "driverVer": _CUDA_VERSION,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
            "multiProcessorCount": self.sm_count,
            "smCountOrigin": 0,  # the whole card, no green context
            "smClockRateKHz": self.clock_khz,
            "memClockRateKHz": self.memory_clock_khz,
            "memoryBusWidth": self.memory_bus_bits,
            "l2CacheSize": self.l2_bytes,
            "totalGlobalMem": self.total_bytes,
            "warpSize": WARP_SIZE,
            "maxGridSize": list(MAX_GRID),
            "maxBlockSize": list(MAX_BLOCK),
            "maxThreadsPerBlock": THREADS_PER_BLOCK,
            "maxThreadsPerSM": self.threads_per_sm,
            "maxCtasPerSM": self.blocks_per_sm,
            "regsPerBlock": REGISTERS_PER_BLOCK,
            "maxRegistersPerSM": REGISTERS_PER_SM,
            "maxSharedMemoryPerBlock": SHARED_PER_BLOCK_BYTES,
            "maxSharedMemoryPerBlockOptin": self.shared_per_block_optin_bytes,
            "maxSharedMemoryPerSM": self.shared_per_sm_bytes,
            "reservedSharedMemoryPerBlock": self.reserved_shared_per_block_bytes,
            "oversizedSharedMemoryPerBlock": 0,  # only capability 10.7 has it
        }

    def to_config(self) -> str:
        """Return `key=value` pairs joined by `;` for the null GPU's C library, which reads them from its environment.

        Raises:
            UsageError: The name holds one of the two separators.
        """
        if ";" in self.name or "=" in self.name:
            raise UsageError(f"Device name '{self.name}' contains ';' or '=', which separate pairs: choose another name.")
        major, minor = self.compute_capability
        pairs: dict[str, str | int] = {
            "name": self.name,
            "total_bytes": self.total_bytes,
            "major": major,
            "minor": minor,
            **{field: getattr(self, field) for field in _IN_CONFIG},
        }
        return ";".join(f"{key}={value}" for key, value in pairs.items())


def mps_limit(environment: Mapping[str, str]) -> int | None:
    """Return the memory that MPS leaves to a process on a card; None: all. spec: CUDA MPS, "0=1G,1=512M"."""
    found = re.findall(r"=([0-9]+)([GM])", environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").upper())
    return min((int(number) << {"G": 30, "M": 20}[unit] for number, unit in found), default=None)
