"""The follower's C++, compiled once against the headers of the installed torch.

Every virtual function of torch's allocator must be forwarded to it. Torch adds some with bodies of their own, which a compiler
does not miss, so the header's names are compared with those in our source: a torch with another one is refused.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Final

import numpy as np

from vramcast.core.compiler import cpp_standard, shared_library
from vramcast.core.errors import CompilerError, OtherAllocator
from vramcast.core.releases import INSTALL, REFERENCE
from vramcast.plans.runtime.plan_file import PlannedPool, RankPlan

_SOURCE: Final = Path(__file__).parent / "csrc" / "follow.cpp"
_STAND_INS: Final = Path(__file__).parents[2] / "tracer" / "nullgpu" / "csrc" / "shim"  # of headers that no wheel has
_CLASSES: Final = {
    "c10/core/Allocator.h": "struct C10_API Allocator {",
    "c10/core/CachingDeviceAllocator.h": "struct C10_API DeviceAllocator : public c10::Allocator {",
    "c10/cuda/CUDACachingAllocator.h": "class CUDAAllocator : public",
}
# Bodies of the base classes that call only functions that are forwarded, or the device.
_INHERITED: Final = frozenset({"is_simple_data_ptr", "getMemoryInfo"})
N_COUNTS: Final = 6  # of follow_counts


def virtuals(include: Path) -> set[str]:
    """Return the names of the virtual functions of the allocator in torch's headers."""
    names = set()
    for header, start in _CLASSES.items():
        path = include / header
        text = re.sub(r"//.*|/\*[\s\S]*?\*/", "", path.read_text()) if path.exists() else ""
        body = text.partition(start)[2].partition("\n};")[0]
        names |= set(re.findall(r"\bvirtual\b[^;{=~]*?\b(\w+)\s*\(", body))
    return names


def forwarded() -> set[str]:
    """Return the names of the functions that the follower overrides."""
    text = re.sub(r"(?m)^#.*", "", _SOURCE.read_text())
    return set(re.findall(r"\b(\w+)\([^;{}]*\)(?: const)? override", text))


def load() -> ctypes.CDLL:
    """Return the follower's library for the torch that is loaded, compiled if needed.

    Raises:
        CompilerError: There is no C++ compiler, the CUDA headers are missing, or this torch is not known.
        OtherAllocator: This torch has no allocator for CUDA.
    """
    import torch

    if torch.version.cuda is None:
        raise OtherAllocator(
            f"A plan needs a CUDA build of PyTorch, and torch {torch.__version__} is a CPU-only one: install a CUDA build "
            f"({INSTALL} on Linux), or follow the plan where there is one."
        )
    if unknown := virtuals(Path(torch.__file__).parent / "include") - forwarded() - _INHERITED:
        raise CompilerError(
            f"torch {torch.__version__} has allocator functions that vramcast does not forward ({', '.join(sorted(unknown))}): "
            f"use torch {REFERENCE}, or a newer vramcast."
        )
    library = ctypes.CDLL(str(shared_library(_SOURCE, version=torch.__version__, options=options())))
    library.follow_start.restype = ctypes.c_char_p
    column, number = np.ctypeslib.ndpointer(np.int64, flags="C"), ctypes.c_int64
    library.follow_start.argtypes = [column, column, column, *[number] * 5]
    library.follow_counts.argtypes = [np.ctypeslib.ndpointer(np.int64, flags="C")]
    library.follow_base.restype = ctypes.c_void_p
    return library


def options() -> list[str]:
    """Return the compiler's options for code on top of the installed torch.

    Raises:
        CompilerError: The CUDA headers are missing.
    """
    import torch

    root = Path(torch.__file__).parent
    headers = [
        _SOURCE.parent / "shim",
        _STAND_INS,
        root / "include",
        root / "include/torch/csrc/api/include",
        *_cuda(root.parent),
    ]
    return [
        cpp_standard(torch.__version__),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(part for folder in headers for part in ("-isystem", str(folder))),
        *(f"-L{root / 'lib'}", "-lc10", "-lc10_cuda", "-lstdc++", "-ldl"),
    ]


def _cuda(site: Path) -> list[Path]:
    """Return the folders with NVIDIA's headers: in the wheels next to torch, else in a CUDA toolkit."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    found = [
        path.parent for path in (*sorted(site.glob("nvidia/*/include/cuda_runtime_api.h")), toolkit / "cuda_runtime_api.h")
    ]
    found = [folder for folder in found if (folder / "cuda_runtime_api.h").exists()]
    if not found:
        raise CompilerError(
            f"The header cuda_runtime_api.h is neither in {site / 'nvidia'} nor in {toolkit}: install torch with its "
            "dependencies (no --no-deps), or set CUDA_HOME."
        )
    return found


def start(library: ctypes.CDLL, plan: RankPlan, pool: PlannedPool) -> None:
    """Put the follower in the place of torch's allocator.

    Raises:
        OtherAllocator: Torch's allocator is not the native one.
    """
    sizes, offsets = (np.array(column, np.int64) for column in (pool.size_bytes, pool.offset_bytes))
    birth, death = (np.array(plan.blocks[name], np.int64) for name in ("birth", "death"))
    first, period, end, step = 0, 0, len(sizes), plan.rows
    if pool.period is not None:
        first, period, end = pool.period.first_block, pool.period.n_blocks, pool.period.end_block
        step = int(birth[first + period] - birth[first]) if first + period < end else plan.rows
    lasts = (death - birth > step) | (death >= plan.rows)
    other = library.follow_start(sizes, offsets, lasts.astype(np.int64), len(sizes), pool.height_bytes, first, period, end)
    if other is not None:
        raise OtherAllocator(
            f"A plan needs PyTorch's native allocator, and this process has {other.decode()}: follow one plan per process, "
            "and remove backend:... from PYTORCH_CUDA_ALLOC_CONF."
        )
