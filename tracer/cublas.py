"""What cuBLAS takes from the allocator at the first product of a thread, and keeps; for tracers without CUDA code."""

from __future__ import annotations

_HOPPER = (9, 0)  # spec: compute capability
_OWN_LT_BEFORE = (2, 13)  # measured: null GPU; 2.9 and 2.11 have a workspace of cuBLASLt's own, 2.13 and 2.15 share cuBLAS's


def workspace_bytes(capability: tuple[int, int]) -> int:
    """Return cuBLAS's workspace.

    spec: torch's getCurrentCUDABlasHandle, 32 MiB on Hopper and later, 2 x 4 MiB + 8 x 16 KiB before.
    """
    return 33_554_432 if capability >= _HOPPER else 8_519_680


def lt_workspace_bytes(torch_version: str) -> int:
    """Return what cuBLASLt takes besides, at the first product with a bias (measured: a100-40gb, h100, t4)."""
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    return 1 << 20 if (major, minor) < _OWN_LT_BEFORE else 0
