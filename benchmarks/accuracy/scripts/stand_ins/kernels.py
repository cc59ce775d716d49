"""Stand-in for the package that gets kernels from a hub; it provides only FlashAttention 3's stand-in.

Only for logged runs whose scripts import it (`benchmarks.accuracy.logs.modded`).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import flash_attn_interface


def get_kernel(name: str, **_: Any) -> SimpleNamespace:
    """Return the content of the kernel's package: `flash_attn_interface`.

    Raises:
        LookupError: the name is another kernel's.
    """
    if "flash-att" not in name:
        raise LookupError(f"The kernel is '{name}': only FlashAttention 3 has a stand-in.")
    return SimpleNamespace(flash_attn_interface=flash_attn_interface)
