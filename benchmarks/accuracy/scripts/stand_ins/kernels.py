"""Stands in for the package which gets kernels from a hub: of what scripts ask it for, FlashAttention 3's stand-in alone.

Only for logged runs whose scripts import it (`benchmarks.accuracy.logs.modded`).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import flash_attn_interface


def get_kernel(name: str, **_: Any) -> SimpleNamespace:
    """Return what the kernel's package has: `flash_attn_interface`.

    Raises:
        LookupError: it is another kernel.
    """
    if "flash-att" not in name:
        raise LookupError(f"The kernel is '{name}': only FlashAttention 3 has a stand-in.")
    return SimpleNamespace(flash_attn_interface=flash_attn_interface)
