"""Counters of torch's allocator in this process, and the stack: read at a job's end, at no cost to it."""

from __future__ import annotations

import platform
import re
import sys
import time
from contextlib import suppress
from typing import Any

from vramcast._version import __version__
from vramcast.core.extras import installed

_LIBRARIES = ("torchvision", "timm", "transformers", "accelerate", "lightning", "numpy")
_ASKED = re.compile(r"Tried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)")
_UNIT_BYTES: dict[str, int] = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def counters(message: str = "") -> dict[str, Any]:
    """Return the allocator's counters of the current card by `Measurement`'s names; empty without torch or a card.

    Args:
        message: torch's out-of-memory message, if there was one.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    with suppress(Exception):  # after a CUDA error nothing more can be read
        statistics = torch.cuda.memory_stats()
        return {
            "allocated_bytes": statistics.get("allocated_bytes.all.peak") or None,
            "reserved_bytes": statistics.get("reserved_bytes.all.peak") or None,
            "retries": statistics.get("num_alloc_retries", 0),
            "ooms": statistics.get("num_ooms", 0),
            "segments": statistics.get("segment.all.peak", 0),
            "oom_requested_bytes": requested_bytes(message),
        }
    return {}


def requested_bytes(message: str) -> int | None:
    """Return the failed request in torch's message, to its two decimals; None: the message names none."""
    match = _ASKED.search(message)
    return round(float(match[1]) * _UNIT_BYTES[match[2]]) if match else None


def stack() -> dict[str, Any]:
    """Return the fields of `Passport` that this process knows; those of the card only if it was used."""
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "libraries": {name: version for name in _LIBRARIES if (version := installed(name)) is not None},
        "vramcast": __version__,
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found.update(torch=torch.__version__, cuda=torch.version.cuda)
        with suppress(Exception):
            if torch.cuda.is_initialized():
                properties = torch.cuda.get_device_properties(torch.cuda.current_device())
                cudnn = torch.backends.cudnn.version()
                found.update(gpu=properties.name, gpu_total_bytes=properties.total_memory, cudnn=str(cudnn) if cudnn else None)
    return found
