"""Memory of a process outside PyTorch's segments: bare, and after kernels of torch, cuBLAS and cuDNN.

    memory of this process by NVML - memory reserved by torch

Two processes run, one for each question: the first identifies the card, and the second measures from before it touches the
card.
"""

from __future__ import annotations

import os
from typing import Any

from vramcast.datasets.collector.machine_info import touches
from vramcast.datasets.collector.nvml import Nvml, NvmlAbsent, Window

MATMULS, CONVOLUTIONS = ("matmul_fp32", "matmul_bf16"), ("convolution",)
# Operations that a training uses; linear algebra and FFT load libraries that few trainings use.
_TRAINING = ("tensor", *MATMULS, *CONVOLUTIONS, "attention", "adam")


def _start() -> None:
    """Create a context, and launch nothing."""
    import torch

    torch.cuda.init()
    torch.cuda.synchronize()


def _launch() -> dict[str, str]:
    """Launch the operations of a training; return the reasons of those that failed, by name."""
    import torch

    failed = {}
    every = touches()
    for name in _TRAINING:
        try:
            every[name]()
            torch.cuda.synchronize()
        except Exception as error:  # bfloat16 on an old card: one failure must not prevent the others
            failed[name] = f"{type(error).__name__}: {error}"[:120]
    return failed


def _reserved_bytes() -> int:
    import torch

    return int(torch.cuda.memory_reserved())


def warm_up() -> None:
    """Do nothing: the process answers twice only."""


def run_job(uuid: str | None) -> dict[str, Any]:
    """Return the card's `uuid`, `gpu` and `torch`; given the uuid, the result of `measured`; or `absent`, with the reason.

    Args:
        uuid: In torch's form.
    """
    import torch

    if not torch.cuda.is_available():
        return {"absent": f"torch {torch.__version__} finds no GPU on this machine"}
    if uuid is None:
        properties = torch.cuda.get_device_properties(0)
        return {"uuid": str(properties.uuid), "gpu": properties.name, "torch": torch.__version__}
    try:
        return measured(Nvml(uuid), os.getpid())
    except NvmlAbsent as error:
        return {"absent": str(error)}


def measured(nvml: Nvml, pid: int) -> dict[str, Any]:
    """Return `bare_bytes` and `kernels_bytes` of the process, the `failed` libraries, the `driver`, and the method (`how`).

    Raises:
        NvmlAbsent: NVML does not report it, or its numbers cannot be a context because other processes started or ended.
    """
    before_bytes, before = nvml.used_bytes(), frozenset(nvml.by_process())

    def taken() -> tuple[int, str]:
        new = {one: size for one, size in nvml.by_process().items() if one not in before}
        window = Window(before_bytes, before, nvml.used_bytes(), new, samples=1)
        size, how = window.process_bytes({pid}, alone=True)
        return (size or 0) - _reserved_bytes(), how

    _start()
    bare, _ = taken()
    failed = _launch()
    kernels, how = taken()
    if not 0 < bare <= kernels:
        raise NvmlAbsent(
            f"{bare} bytes before kernels and {kernels} after them cannot be a context ({how}): let nothing else use the "
            "card meanwhile"
        )
    return {"bare_bytes": bare, "kernels_bytes": kernels, "failed": failed, "driver": nvml.driver(), "how": how}
