"""The measuring machine's passport, read once in a process of its own."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vramcast.datasets.collector.counters import stack
from vramcast.datasets.collector.nvml import Nvml, NvmlAbsent
from vramcast.tracer.hooks import torch_api

# spec: cudnn_graph_v9.h: the descriptor of a device, its attributes and their types
_DEVICE_DESCRIPTOR, _ATTRIBUTE_DEVICE, _ATTRIBUTE_JSON, _TYPE_INT32, _TYPE_CHAR = 38, 2700, 2702, 23, 24


def run_job(argument: None) -> dict[str, Any]:
    """Return the facts of this process's card as JSON values: `passport`, `properties`, `context_bytes`, `cudnn_record`.

    If torch finds no card: `absent`, with the reason.
    """
    import torch

    if not torch.cuda.is_available():
        return {"absent": f"torch {torch.__version__} finds no GPU on this machine"}
    context = _context_by_library()
    properties = torch.cuda.get_device_properties(0)
    return {
        "passport": {"driver": _driver(), **stack()},
        "uuid": str(getattr(properties, "uuid", "")) or None,
        "properties": {
            name: value
            for name in dir(properties)
            if not name.startswith("_") and isinstance(value := getattr(properties, name), (int, str, float))
        },
        "arch_flags": torch_api.cuda_arch_flags(),
        "context_bytes": context,
        "cudnn_record": _cudnn_record(),
    }


def warm_up() -> None:
    """Do nothing: the process answers only once."""


def _driver() -> str | None:
    try:
        return Nvml().driver()
    except NvmlAbsent:
        return None


def _context_by_library() -> dict[str, int | str]:
    """Return the card's memory outside the allocator's segments after the first use of each library in turn."""
    import torch

    found: dict[str, int | str] = {}
    for name, touch in {"init": torch.cuda.init, **touches()}.items():
        try:
            touch()
            torch.cuda.synchronize()
            free, total = torch.cuda.mem_get_info()
            found[name] = total - free - torch.cuda.memory_reserved()
        except Exception as error:  # one failing library must not prevent the others
            found[name] = f"failed: {error}"[:120]
    return found


def touches() -> dict[str, Callable[[], Any]]:
    """Return functions, by name, that make a process load kernels and libraries, in the order of a training."""
    import torch
    from torch.nn import functional

    def randn(*shape: int, **options: Any) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", **options)

    def train_convolution() -> None:
        image, weight = randn(8, 64, 56, 56, requires_grad=True), randn(64, 64, 3, 3, requires_grad=True)
        functional.conv2d(image, weight, padding=1).sum().backward()

    def train_attention() -> None:
        query = randn(2, 8, 256, 64, dtype=torch.bfloat16, requires_grad=True)
        functional.scaled_dot_product_attention(query, query, query).sum().backward()

    def step_adam() -> None:
        weight = randn(1024, 1024, requires_grad=True)
        weight.grad = torch.zeros_like(weight)
        torch.optim.Adam([weight]).step()

    return {
        "tensor": lambda: torch.zeros(1024, device="cuda"),
        "matmul_fp32": lambda: randn(1024, 1024) @ randn(1024, 1024),
        "matmul_bf16": lambda: randn(1024, 1024, dtype=torch.bfloat16) @ randn(1024, 1024, dtype=torch.bfloat16),
        "convolution": train_convolution,
        "attention": train_attention,
        "adam": step_adam,
        "linalg": lambda: torch.linalg.inv(torch.eye(64, device="cuda")),
        "fft": lambda: torch.fft.fft(randn(64, 64)),
    }


def _cudnn_record() -> str | None:
    """Return cuDNN's own record of the device as JSON text (cuDNN >= 9.11); None: it returns none."""
    with suppress(OSError, AttributeError):
        return _ask_cudnn(ctypes.CDLL("libcudnn.so.9"))
    return None


def _ask_cudnn(cudnn: Any) -> str | None:
    descriptor, index, count = ctypes.c_void_p(), ctypes.c_int(0), ctypes.c_int64(0)
    if cudnn.cudnnBackendCreateDescriptor(_DEVICE_DESCRIPTOR, ctypes.byref(descriptor)):
        return None
    set_, finalize, get = cudnn.cudnnBackendSetAttribute, cudnn.cudnnBackendFinalize, cudnn.cudnnBackendGetAttribute
    one = ctypes.c_int64(1)
    if set_(descriptor, _ATTRIBUTE_DEVICE, _TYPE_INT32, one, ctypes.byref(index)) or finalize(descriptor):
        return None
    if get(descriptor, _ATTRIBUTE_JSON, _TYPE_CHAR, ctypes.c_int64(0), ctypes.byref(count), None):
        return None
    text = ctypes.create_string_buffer(count.value + 1)
    if get(descriptor, _ATTRIBUTE_JSON, _TYPE_CHAR, count, ctypes.byref(count), text):
        return None
    return text.value.decode(errors="replace")


if __name__ == "__main__":
    import json

    json.dump(run_job(None), sys.stdout, indent=1)
