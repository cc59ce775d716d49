"""torch.cuda in the tracing process: answers to Python code that queries a card before using it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from vramcast.hardware.device import Device
from vramcast.tracer.fake.tensor import CudaTensor, cuda, new_tensor, to
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.rules.history import History

# Operators that autograd decomposes in a build without CUDA, because it has no kernel for them (spec: torch 2.13, CPU
# build).
_ONLY_CUDAS = ("_fused_rms_norm",)
_ACCOUNTS = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


def pretend(device: Device, total_bytes: int, history: History) -> None:
    """Make this process report a card, permanently: it runs one job and exits.

    Without this, code that looks for a card, such as `torch.autocast`, would behave as on a machine without one.
    """
    major, minor = device.compute_capability
    properties = SimpleNamespace(
        name=device.name, major=major, minor=minor, total_memory=total_bytes, multi_processor_count=device.sm_count,
        warp_size=32, L2_cache_size=device.l2_bytes, gcnArchName="",
    )  # fmt: skip
    device_name = device.name
    answers: dict[str, Any] = {
        **dict.fromkeys(("is_available", "is_initialized"), lambda: True),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or major >= 8,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: device_name,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_properties": lambda device=None: properties,
        "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device="cuda": None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "empty_cache": history.empty_cache,
        "mem_get_info": lambda device=None: (total_bytes, total_bytes),
        **dict.fromkeys(_ACCOUNTS, lambda device=None: 0),
        **dict.fromkeys(("synchronize", "reset_peak_memory_stats"), lambda device=None: None),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    if hasattr(torch, "accelerator"):  # torch.optim asks it since 2.14, and torch.cuda before
        stream: Any = SimpleNamespace(is_capturing=lambda: False)
        torch.accelerator.current_stream = lambda device=None: stream
    for owner, name in torch_api.places("lazy_init"):
        setattr(owner, name, lambda: None)
    torch.Tensor.to, torch.Tensor.cuda = to, cuda  # type: ignore[method-assign, assignment]
    torch_api.set_only_lift_cpu_tensors(True)
    # A parameter keeps its identity when it moves to another tensor class: tied weights stay tied.
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor  # type: ignore[method-assign, assignment, return-value]
    torch.Tensor.new_tensor = new_tensor  # type: ignore[method-assign, assignment]
    # Gradients are grouped by the device that C++ sees.
    for owner, name in torch_api.places("foreach_devices_of_gradients"):
        setattr(owner, name, lambda: ["cuda", "meta"])
    # foreach is CUDA's default, but the check requires the exact class.
    for known in (torch_api.foreach_types_of_optimizers, torch_api.foreach_types_of_gradients):
        known.append(CudaTensor)


def name_kernels(library: torch.library.Library) -> None:
    """Register the CUDA kernels that this build lacks: without one, autograd decomposes an operator, as on the CPU.

    None is ever called: the dispatch mode answers first.
    """
    for name in _ONLY_CUDAS:
        if torch_api.has(name.removeprefix("_")) and not torch_api.has_kernel(f"aten::{name}", "CUDA"):
            library.impl(name, _no_kernel, "CUDA")


def _no_kernel(*arguments: Any, **named: Any) -> Any:
    raise NotImplementedError("a CUDA kernel was called outside the dispatch mode")
