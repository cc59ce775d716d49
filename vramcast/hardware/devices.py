"""The cards an estimate can be made for, in numbers which a null GPU and cuDNN's deviceless mode can report.

Nothing here was read from a card by this project: every number comes from a data sheet or from what other people's
programs printed, and each line says which (`spec`, `measured` or `arbitrary`, with the place).

What PyTorch sees as the total memory is less than what is printed on the box (ECC, firmware), and it moves by up to
0.5 % with the driver: an H100 reports 79.10 to 79.22 GiB. Where several values are public, the smaller one of a current
driver is kept, so that a job which fits here fits there.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vramcast.core.checks import whole
from vramcast.core.errors import UsageError
from vramcast.core.text import shown
from vramcast.core.units import MIB, gib, parse_bytes

# Sources named more than once. XLA's files are device descriptions, one a card, by their look printed by XLA on real
# cards (h200.txtpb is not: round numbers); where a second source exists, it agrees.
#   XLA:         https://github.com/openxla/xla/tree/4336d12e0706168f6a382ddb231f3a83853b0657/xla/backends/gpu/target_config/specs
#   deviceQuery: what NVIDIA's sample of that name printed; @thamada =
#                https://github.com/thamada/nvidia-smi/tree/b09ef139265ffc7e3c78006346981de8e4d70499/gls
#   xMem:        https://github.com/Stone-ResearchLife/xMem, the card's total in evaluation_result.json
#   guide:       CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability"

WARP_SIZE = 32  # spec: guide
THREADS_PER_BLOCK = 1024  # spec: guide
SHARED_PER_BLOCK_BYTES = 49_152  # spec: guide (without opting in)
REGISTERS_PER_BLOCK = 65_536  # spec: guide
REGISTERS_PER_SM = 65_536  # spec: guide
CONSTANT_BYTES = 65_536  # spec: guide
MAX_GRID = (2_147_483_647, 65_535, 65_535)  # spec: guide
MAX_BLOCK = (1024, 1024, 64)  # spec: guide


@dataclass(frozen=True, slots=True)
class Limits:
    """What the compute capability alone decides."""

    shared_per_sm_bytes: int
    shared_per_block_optin_bytes: int
    reserved_shared_per_block_bytes: int
    threads_per_sm: int
    blocks_per_sm: int


LIMITS: dict[tuple[int, int], Limits] = {
    (7, 0): Limits(98_304, 98_304, 0, 2048, 32),  # spec: guide
    (7, 5): Limits(65_536, 65_536, 0, 1024, 16),  # spec: guide
    (8, 0): Limits(167_936, 166_912, 1024, 2048, 32),  # spec: guide
    (8, 6): Limits(102_400, 101_376, 1024, 1536, 16),  # spec: guide
    (8, 9): Limits(102_400, 101_376, 1024, 1536, 24),  # spec: guide
    (9, 0): Limits(233_472, 232_448, 1024, 2048, 32),  # spec: guide
    (10, 0): Limits(233_472, 232_448, 1024, 2048, 32),  # spec: guide
    (12, 0): Limits(102_400, 101_376, 1024, 1536, 24),  # spec: guide
}

_CUDA_VERSION = 13_000  # arbitrary: the driver which the record claims, as 1000 * major + 10 * minor


@dataclass(frozen=True, slots=True)
class Device:
    """One model of card, as `torch.cuda.get_device_properties` and cuDNN see it.

    Attributes:
        key: How this project calls it.
        name: How torch prints it.
        total_bytes: `total_memory` in torch, the total of `cudaMemGetInfo`: after ECC and firmware, before any context.
        compute_capability: Major, minor.
        clock_khz: Highest SM clock.
        memory_clock_khz: Highest memory clock (half the data rate).
        assumed: Names of the fields whose value nobody measured or specified for this card.
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

    def with_memory(self, total_bytes: int) -> Device:
        """Return the same card with another total, for example another driver's or a MIG slice's.

        Args:
            total_bytes: As `total_memory` of torch says it, > 0.
        Raises:
            UsageError: total_bytes <= 0.
        """
        if total_bytes <= 0:
            raise UsageError(f"Memory of {total_bytes} bytes is not positive: give what torch reports as total_memory.")
        assumed = tuple(field for field in self.assumed if field != "total_bytes")
        return dataclasses.replace(self, total_bytes=total_bytes, assumed=assumed)

    def attributes(self) -> dict[str, int]:
        """Return every integer property under its short name."""
        major, minor = self.compute_capability
        return {
            "total_bytes": self.total_bytes,
            "compute_major": major,
            "compute_minor": minor,
            "sm_count": self.sm_count,
            "clock_khz": self.clock_khz,
            "memory_clock_khz": self.memory_clock_khz,
            "memory_bus_bits": self.memory_bus_bits,
            "l2_bytes": self.l2_bytes,
            "shared_per_sm_bytes": self.shared_per_sm_bytes,
            "shared_per_block_bytes": SHARED_PER_BLOCK_BYTES,
            "shared_per_block_optin_bytes": self.shared_per_block_optin_bytes,
            "reserved_shared_per_block_bytes": self.reserved_shared_per_block_bytes,
            "threads_per_sm": self.threads_per_sm,
            "threads_per_block": THREADS_PER_BLOCK,
            "blocks_per_sm": self.blocks_per_sm,
            "registers_per_sm": REGISTERS_PER_SM,
            "registers_per_block": REGISTERS_PER_BLOCK,
            "constant_bytes": CONSTANT_BYTES,
            "warp_size": WARP_SIZE,
        }

    def cudnn_record(self) -> dict[str, object]:
        """Return the device-property record of cuDNN's deviceless mode (JSON representation, cuDNN >= 9.11).

        Source: keys as cuDNN 9.19 demands them; the constants as in XLA's BuildDeviceProperties,
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
        """Return `key=value` pairs joined by `;`, which the null GPU's C library reads from its environment.

        Raises:
            UsageError: The name holds one of the two separators.
        """
        if ";" in self.name or "=" in self.name:
            raise UsageError(f"Device name '{self.name}' holds ';' or '=', which separate pairs: choose another name.")
        major, minor = self.compute_capability
        pairs: dict[str, str | int] = {
            "name": self.name,
            "total_bytes": self.total_bytes,
            "major": major,
            "minor": minor,
            "sm_count": self.sm_count,
            "clock_khz": self.clock_khz,
            "memory_clock_khz": self.memory_clock_khz,
            "memory_bus_bits": self.memory_bus_bits,
            "l2_bytes": self.l2_bytes,
            "shared_per_sm_bytes": self.shared_per_sm_bytes,
            "shared_per_block_optin_bytes": self.shared_per_block_optin_bytes,
            "threads_per_sm": self.threads_per_sm,
            "blocks_per_sm": self.blocks_per_sm,
        }
        return ";".join(f"{key}={value}" for key, value in pairs.items())


def _device(
    key: str,
    name: str,
    *,
    total_bytes: int,
    compute_capability: tuple[int, int],
    sm_count: int,
    clock_khz: int,
    memory_clock_khz: int,
    memory_bus_bits: int,
    l2_bytes: int,
    assumed: tuple[str, ...] = (),
) -> Device:
    """Return the card with the limits of its compute capability filled in."""
    limits = LIMITS[compute_capability]
    return Device(
        key=key,
        name=name,
        total_bytes=total_bytes,
        compute_capability=compute_capability,
        sm_count=sm_count,
        clock_khz=clock_khz,
        memory_clock_khz=memory_clock_khz,
        memory_bus_bits=memory_bus_bits,
        l2_bytes=l2_bytes,
        shared_per_sm_bytes=limits.shared_per_sm_bytes,
        shared_per_block_optin_bytes=limits.shared_per_block_optin_bytes,
        reserved_shared_per_block_bytes=limits.reserved_shared_per_block_bytes,
        threads_per_sm=limits.threads_per_sm,
        blocks_per_sm=limits.blocks_per_sm,
        assumed=assumed,
    )


_ALL = (
    _device(
        "v100-16gb",
        "Tesla V100-SXM2-16GB",
        total_bytes=16_935_682_048,  # measured: XLA v100.txtpb, 2026
        compute_capability=(7, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=80,  # measured: XLA v100.txtpb, 2026
        clock_khz=1_530_000,  # measured: XLA v100.txtpb, 2026
        memory_clock_khz=877_000,  # measured: XLA v100.txtpb, 2026
        memory_bus_bits=4096,  # spec: NVIDIA V100 data sheet
        l2_bytes=6_291_456,  # measured: XLA v100.txtpb, 2026
    ),
    _device(
        "v100-32gb",
        "Tesla V100-SXM2-32GB",
        total_bytes=34_072_559_616,  # measured: deviceQuery, CUDA 12.9, github.com/felicepantaleo/gpu_training, 2025
        compute_capability=(7, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=80,  # measured: deviceQuery, as above
        clock_khz=1_530_000,  # measured: deviceQuery, as above
        memory_clock_khz=877_000,  # measured: deviceQuery, as above
        memory_bus_bits=4096,  # measured: deviceQuery, as above
        l2_bytes=6_291_456,  # spec: NVIDIA V100 data sheet (6 MB)
    ),
    _device(
        "t4",
        "Tesla T4",
        total_bytes=15_642_329_088,  # measured: deviceQuery, CUDA 12.5, in a public installation log, 2024
        compute_capability=(7, 5),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=40,  # measured: deviceQuery, github.com/sylvia-ymlin/cuda-kernels-from-scratch README
        clock_khz=1_590_000,  # measured: deviceQuery, as above
        memory_clock_khz=5_001_000,  # measured: deviceQuery, as above
        memory_bus_bits=256,  # measured: deviceQuery, as above
        l2_bytes=4_194_304,  # measured: deviceQuery, as above
    ),
    _device(
        "a10",
        "NVIDIA A10",
        total_bytes=23_609_475_072,  # measured: CUDA 12.2, github.com/aalanwyr/face2cuda step2cuda/README.md
        compute_capability=(8, 6),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=72,  # measured: deviceQuery, CUDA 12.8, in a public installation log, 2025
        clock_khz=1_695_000,  # measured: github.com/aalanwyr/face2cuda, as above
        memory_clock_khz=6_251_000,  # measured: deviceQuery, CUDA 12.8, as above
        memory_bus_bits=384,  # measured: github.com/aalanwyr/face2cuda, as above
        l2_bytes=6_291_456,  # measured: github.com/aalanwyr/face2cuda, as above
    ),
    _device(
        "a100-40gb",
        "NVIDIA A100-SXM4-40GB",
        total_bytes=42_474_471_424,  # measured: xMem, torch 2.6, 2025
        compute_capability=(8, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=108,  # measured: XLA a100_sxm_40.txtpb, 2026
        clock_khz=1_410_000,  # measured: XLA a100_sxm_40.txtpb, 2026
        memory_clock_khz=1_215_000,  # measured: XLA a100_sxm_40.txtpb, 2026
        memory_bus_bits=5120,  # spec: NVIDIA A100 white paper
        l2_bytes=41_943_040,  # measured: XLA a100_sxm_40.txtpb, 2026
    ),
    _device(
        "a100-pcie-40gb",
        "NVIDIA A100-PCIE-40GB",
        total_bytes=42_474_471_424,  # arbitrary: as the SXM4 card's; nvidia-smi says 40960 MiB of both
        compute_capability=(8, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=108,  # spec: NVIDIA A100 white paper
        clock_khz=1_410_000,  # spec: NVIDIA A100 data sheet
        memory_clock_khz=1_215_000,  # spec: NVIDIA A100 data sheet, from 1,555 GB/s
        memory_bus_bits=5120,  # spec: NVIDIA A100 white paper
        l2_bytes=41_943_040,  # spec: NVIDIA A100 white paper, 40 MB
        assumed=("total_bytes",),
    ),
    _device(
        "a100-80gb",
        "NVIDIA A100-SXM4-80GB",
        total_bytes=85_100_068_864,  # measured: XLA a100_sxm_80.txtpb; deviceQuery @thamada, CUDA 12.5
        compute_capability=(8, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=108,  # measured: deviceQuery @thamada A100SXMx4, CUDA 12.5
        clock_khz=1_410_000,  # measured: deviceQuery @thamada A100SXMx4, CUDA 12.5
        memory_clock_khz=1_593_000,  # measured: deviceQuery @thamada A100SXMx4, CUDA 12.5
        memory_bus_bits=5120,  # spec: NVIDIA A100 white paper
        l2_bytes=41_943_040,  # measured: XLA a100_sxm_80.txtpb, 2026
    ),
    _device(
        "l4",
        "NVIDIA L4",
        total_bytes=23_570_219_008,  # measured: deviceQuery @thamada L4, CUDA 12.4
        compute_capability=(8, 9),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=58,  # measured: deviceQuery @thamada L4, CUDA 12.4
        clock_khz=2_040_000,  # measured: deviceQuery @thamada L4, CUDA 12.4
        memory_clock_khz=6_251_000,  # measured: deviceQuery @thamada L4, CUDA 12.4
        memory_bus_bits=192,  # measured: deviceQuery @thamada L4, CUDA 12.4
        l2_bytes=50_331_648,  # measured: deviceQuery @thamada L4, CUDA 12.4
    ),
    _device(
        "l40s",
        "NVIDIA L40S",
        total_bytes=47_576_711_168,  # measured: CUDA 12.4, github.com/alvarobartt/cuda-device-query README at 785c09f
        compute_capability=(8, 9),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=142,  # measured: cuda-device-query, as above
        clock_khz=2_520_000,  # measured: cuda-device-query, as above
        memory_clock_khz=9_001_000,  # measured: cuda-device-query, as above
        memory_bus_bits=384,  # measured: cuda-device-query, as above
        l2_bytes=100_663_296,  # measured: cuda-device-query, as above
    ),
    _device(
        "h100",
        "NVIDIA H100 80GB HBM3",
        total_bytes=84_942_979_072,  # measured: XLA h100_sxm.txtpb; public deviceQuery logs go up to 85_045_477_376
        compute_capability=(9, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=132,  # measured: XLA h100_sxm.txtpb, 2026
        clock_khz=1_980_000,  # measured: XLA h100_sxm.txtpb, 2026
        memory_clock_khz=2_619_000,  # measured: XLA h100_sxm.txtpb, 2026
        memory_bus_bits=5120,  # measured: deviceQuery, github.com/thamada/nvidia-smi nvsim/H100SXMx8, CUDA 12.7
        l2_bytes=52_428_800,  # measured: XLA h100_sxm.txtpb, 2026
    ),
    _device(
        "h100-pcie",
        "NVIDIA H100 PCIe",
        total_bytes=84_942_979_072,  # measured: XLA h100_pcie.txtpb; torch prints 81008MB
        compute_capability=(9, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=114,  # measured: XLA h100_pcie.txtpb
        clock_khz=1_755_000,  # measured: XLA h100_pcie.txtpb
        memory_clock_khz=1_593_000,  # spec: NVIDIA H100 PCIe product brief
        memory_bus_bits=5120,  # spec: NVIDIA H100 PCIe product brief
        l2_bytes=52_428_800,  # measured: XLA h100_pcie.txtpb
    ),
    _device(
        "h100-nvl",
        "NVIDIA H100 NVL",
        total_bytes=99_961_274_368,  # measured: OpenCL, driver 570, github.com/fastfetch-cli/fastfetch/issues/1658
        compute_capability=(9, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=132,  # measured: OpenCL, same issue
        clock_khz=1_785_000,  # measured: OpenCL, same issue
        memory_clock_khz=2_619_000,  # spec: NVIDIA H100 NVL product brief
        memory_bus_bits=6016,  # spec: NVIDIA H100 NVL product brief; gives its 3,938 GB/s
        l2_bytes=62_914_560,  # arbitrary: the H200's, which has as many memory partitions
        assumed=("l2_bytes",),
    ),
    _device(
        "h200",
        "NVIDIA H200",
        total_bytes=150_109_880_320,  # measured: torch, in a public test fixture of 2026; OOM logs say 139.80 GiB
        compute_capability=(9, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=132,  # measured: torch, same fixture
        clock_khz=1_980_000,  # spec: XLA h200.txtpb (that file is written by hand)
        memory_clock_khz=3_201_000,  # measured: nvidia-smi in a public log, driver 575, 2026
        memory_bus_bits=6016,  # measured: NVML in a public log, 2026; gives the 4.8 TB/s of the data sheet
        l2_bytes=62_914_560,  # measured: torch, same fixture
    ),
    _device(
        "b200",
        "NVIDIA B200",
        total_bytes=191_514_411_008,  # measured: XLA b200.txtpb at 300ec95; torch prints 182642MB
        compute_capability=(10, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=148,  # measured: XLA b200.txtpb at 300ec95
        clock_khz=1_965_000,  # measured: XLA b200.txtpb at 300ec95
        memory_clock_khz=3_996_000,  # measured: https://github.com/pytorch/ao/pull/4002, 2026-03
        memory_bus_bits=7680,  # measured: https://github.com/pytorch/ao/pull/4002, 2026-03 (older drivers say 8192)
        l2_bytes=132_644_864,  # measured: XLA b200.txtpb at 300ec95
    ),
    _device(
        "rtx3060",
        "NVIDIA GeForce RTX 3060",
        total_bytes=12_622_168_064,  # measured: xMem, torch 2.6, 2025
        compute_capability=(8, 6),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=28,  # measured: deviceQuery in public logs, CUDA 12.1 to 12.8
        clock_khz=1_777_000,  # measured: deviceQuery, CUDA 12.8 (reference clock; board makers set up to 1_867_000)
        memory_clock_khz=7_501_000,  # measured: deviceQuery in public logs, CUDA 12.1 to 12.8
        memory_bus_bits=192,  # measured: deviceQuery in public logs, CUDA 12.1 to 12.8
        l2_bytes=2_359_296,  # measured: deviceQuery in public logs, CUDA 12.1 to 12.8
    ),
    _device(
        "rtx3090",
        "NVIDIA GeForce RTX 3090",
        total_bytes=25_327_697_920,  # measured: deviceQuery @thamada RTX3090, CUDA 12.6
        compute_capability=(8, 6),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=82,  # measured: deviceQuery @thamada RTX3090, CUDA 12.6
        clock_khz=1_695_000,  # measured: deviceQuery @thamada RTX3090, CUDA 12.6
        memory_clock_khz=9_751_000,  # measured: deviceQuery @thamada RTX3090, CUDA 12.6
        memory_bus_bits=384,  # measured: deviceQuery @thamada RTX3090, CUDA 12.6
        l2_bytes=6_291_456,  # measured: deviceQuery @thamada RTX3090, CUDA 12.6
    ),
    _device(
        "rtx4060",
        "NVIDIA GeForce RTX 4060",
        total_bytes=8_318_222_336,  # measured: xMem, torch 2.6, 2025
        compute_capability=(8, 9),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=24,  # spec: NVIDIA product page, 3072 cores / 128
        clock_khz=2_460_000,  # spec: NVIDIA product page, boost clock
        memory_clock_khz=8_501_000,  # arbitrary: half of 17 Gbit/s, in the driver's rounding on other GDDR6 cards
        memory_bus_bits=128,  # spec: NVIDIA product page
        l2_bytes=25_165_824,  # spec: NVIDIA product page, 24 MB (the laptop card reports 32 MiB)
        assumed=("memory_clock_khz",),
    ),
    _device(
        "rtx4080",
        "NVIDIA GeForce RTX 4080",
        total_bytes=17_171_480_576,  # measured: nvidia-smi, 16376 MiB in public logs; torch sees up to 2 % less on Linux
        compute_capability=(8, 9),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=76,  # spec: NVIDIA Ada white paper
        clock_khz=2_505_000,  # spec: NVIDIA Ada white paper, boost clock
        memory_clock_khz=11_201_000,  # spec: NVIDIA Ada white paper, half of 22.4 Gbit/s
        memory_bus_bits=256,  # spec: NVIDIA Ada white paper
        l2_bytes=67_108_864,  # spec: NVIDIA Ada white paper, 64 MB
    ),
    _device(
        "rtx4090",
        "NVIDIA GeForce RTX 4090",
        total_bytes=25_386_352_640,  # measured: deviceQuery @thamada RTX4090, CUDA 12.4
        compute_capability=(8, 9),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=128,  # measured: deviceQuery @thamada RTX4090, CUDA 12.4
        clock_khz=2_520_000,  # measured: deviceQuery @thamada RTX4090, CUDA 12.4
        memory_clock_khz=10_501_000,  # measured: deviceQuery @thamada RTX4090, CUDA 12.4
        memory_bus_bits=384,  # measured: deviceQuery @thamada RTX4090, CUDA 12.4
        l2_bytes=75_497_472,  # measured: deviceQuery @thamada RTX4090, CUDA 12.4
    ),
    _device(
        "rtx5080-laptop",
        "NVIDIA GeForce RTX 5080 Laptop GPU",
        total_bytes=17_094_934_528,  # measured: nvidia-smi, 16303 MiB in public logs; torch sees up to 3 % less on Linux
        compute_capability=(12, 0),  # spec: https://developer.nvidia.com/cuda-gpus
        sm_count=60,  # spec: NVIDIA product page, 7680 cores / 128
        clock_khz=2_287_000,  # spec: NVIDIA product page, highest boost clock
        memory_clock_khz=14_001_000,  # arbitrary: as the RTX 5090's, which gives the data sheet's 896 GB/s
        memory_bus_bits=256,  # spec: NVIDIA product page
        l2_bytes=67_108_864,  # arbitrary: of the chip which the desktop's RTX 5080 has, NVIDIA Blackwell white paper
        assumed=("memory_clock_khz", "l2_bytes"),
    ),
    _device(
        "rtx5090",
        "NVIDIA GeForce RTX 5090",
        total_bytes=33_677_180_928,  # measured: deviceQuery, CUDA 12.8, aikitoria/open-gpu-kernel-modules#1
        compute_capability=(12, 0),  # measured: deviceQuery, as above
        sm_count=170,  # measured: deviceQuery, CUDA 12.8, NVIDIA/nccl#1637
        clock_khz=2_550_000,  # measured: deviceQuery, as above (board makers set up to 2_655_000)
        memory_clock_khz=14_001_000,  # measured: deviceQuery, as above
        memory_bus_bits=512,  # measured: deviceQuery, as above
        l2_bytes=100_663_296,  # measured: deviceQuery, as above
    ),
)

DEVICES: Mapping[str, Device] = MappingProxyType({card.key: card for card in _ALL})

# Other things people write. The smaller card is meant where the size is not said: a job which fits it fits the other.
_ALIASES = {
    "v100": "v100-16gb",
    "a100": "a100-40gb",
    "h100-80gb": "h100",
    "h100-sxm": "h100",
    "h100-sxm5": "h100",
    "h200-141gb": "h200",
    "h200-sxm": "h200",
}


def _squeeze(text: str) -> str:
    """Return `text` without case, maker, product line, separators: `NVIDIA GeForce RTX 4090` -> `rtx4090`."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", text.lower())


_BY_NAME = {_squeeze(name): key for name, key in _ALIASES.items()}
_BY_NAME |= {_squeeze(card.name): card.key for card in _ALL} | {_squeeze(card.key): card.key for card in _ALL}


SMALLEST_BYTES = 256 * MIB  # arbitrary: less than any card has for which PyTorch is built; a number of MiB or KiB is below it


def checked_card_bytes(size: object) -> int:
    """Return the size of a card in bytes, as text (`12GiB`) or as a number.

    Raises:
        UsageError: It is neither, or no card has so little.
    """
    size_bytes = parse_bytes(size) if isinstance(size, str) else whole("The card's memory", size)
    if size_bytes < SMALLEST_BYTES:
        raise UsageError(
            f"The card's memory is {size_bytes} bytes, and no card has less than {gib(SMALLEST_BYTES)}: "
            "was the unit forgotten? Write for example 12GiB."
        )
    return size_bytes


def card_bytes(text: str) -> int:
    """Return the size in bytes of a card given by its name (`rtx4090`) or by its size (`12GiB`).

    Raises:
        UsageError: It is neither; the message lists the known cards when `text` looks like a name.
    """
    text = text.strip()
    if not text[:1].isdigit() or text.endswith(".toml"):
        return device(text).total_bytes
    # A size with its unit is meant as it is: a history is played on cards of any size.
    return checked_card_bytes(text) if text.isdigit() else parse_bytes(text)


def device(key: str) -> Device:
    """Return the card called `key`.

    Args:
        key: A key of `DEVICES` or of the site's cards, an alias (`a100`, `rtx 4090`) or the name which torch prints, whatever
            the case; or the path of a file with one card (`my-card.toml`).
    Raises:
        UsageError: No such card; the message lists the known keys and the closest one. Or a wrong file.
    """
    from vramcast.hardware import site_file  # which knows what a Device is

    if not isinstance(key, str):
        raise UsageError(f"device is {shown(key)}: give a card's name, one of {', '.join(DEVICES)}.")
    if key.endswith(site_file.ENDING):
        return site_file.card_of(key)
    squeezed = _squeeze(key)
    site = site_file.current()
    own = site.cards if site is not None else {}
    for card in own.values():  # the site's own before those of the table
        if is_called(card, key):
            return card
    if squeezed in _BY_NAME:
        return DEVICES[_BY_NAME[squeezed]]
    by_name = _BY_NAME | {_squeeze(card.key): card.key for card in own.values()}
    close = difflib.get_close_matches(squeezed, by_name, n=1)
    hint = f" Did you mean '{by_name[close[0]]}'?" if close else ""
    raise UsageError(
        f"Device '{key}' is not known.{hint} Known: {', '.join([*own, *DEVICES])}. "
        "For another card give the closest of these and its memory in bytes (--memory), or a file with its numbers (card.toml)."
    )


def is_called(card: Device, name: str) -> bool:
    """Return whether people call the card so: by its key or by the name which torch prints, whatever the case."""
    return _squeeze(name) in (_squeeze(card.key), _squeeze(card.name))
