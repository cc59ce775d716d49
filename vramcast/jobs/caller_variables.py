"""Variables of the caller's shell that CUDA, PyTorch, NCCL, or a launcher reads, and what they are for a job.

    replaced    which card, which rank: the job has its own
    obeyed      what changes the memory of the job on a card
    ignored     what is about the caller's card or its speed

Patterns are those of `fnmatch`; the first one that matches decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from vramcast.jobs.ranks import ALONE, Rank

VISIBLE_CARDS: Final = "CUDA_VISIBLE_DEVICES"


class VariableRule(StrEnum):
    """The fate of a variable of the caller."""

    REPLACED = "replaced by those of the job's own ranks"
    OBEYED = "obeyed, because they may change its memory"
    IGNORED = "ignored"


# spec: CUDA C++ Programming Guide, "CUDA Environment Variables"; docs.pytorch.org, "CUDA", "ProcessGroupNCCL", and
# "Miscellaneous Environment Variables"; NCCL's and cuBLAS's user guides
_DECISIONS: Final[dict[str, VariableRule]] = {
    "TORCHINDUCTOR_CACHE_DIR": VariableRule.IGNORED,  # PyTorch sets it itself
    **dict.fromkeys((VISIBLE_CARDS, *Rank(0, ALONE).numbers), VariableRule.REPLACED),
    **dict.fromkeys(
        (
            "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUBLAS_WORKSPACE_CONFIG",
            "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_*", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_CUDNN_*", "TORCH_NCCL_*",
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_LINALG_PREFER_*", "NVIDIA_TF32_OVERRIDE", "CUDA_MODULE_LOADING",
            "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MPS_*", "NCCL_*", "TORCHINDUCTOR_*", "TORCH_COMPILE_*",
        ),
        VariableRule.OBEYED,
    ),
    **dict.fromkeys(
        (
            "CUDA_*", "NVIDIA_*", "PYTORCH_NVML_BASED_CUDA_CHECK", "LD_PRELOAD", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*",
        ),
        VariableRule.IGNORED,
    ),
}  # fmt: skip


def decision(name: str) -> VariableRule | None:
    """Return the decision on a variable; None: nothing on a card reads it."""
    return next((one for pattern, one in _DECISIONS.items() if fnmatchcase(name, pattern)), None)


def note(environment: Iterable[str]) -> str:
    """Return the remark on the variables of an environment that are replaced or obeyed; "" if there are none.

    Example:
        >>> note({"CUDA_VISIBLE_DEVICES": "3", "HOME": "/root"})
        "variables of the shell: CUDA_VISIBLE_DEVICES replaced by those of the job's own ranks"
    """
    found = {kind: sorted(name for name in environment if decision(name) is kind) for kind in VariableRule}
    said = [f"{', '.join(found[kind])} {kind}" for kind in (VariableRule.REPLACED, VariableRule.OBEYED) if found[kind]]
    return f"variables of the shell: {'; '.join(said)}" if said else ""
