"""vramcast: how much GPU memory will this PyTorch training job take?

import vramcast
est = vramcast.estimate(model, batch, optimizer="adamw", device="a100-40gb")
est.process, est.upper_bound, est.fits()
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("vramcast.tracer") is None:
    raise ImportError(
        "vramcast/tracer is not a link to ../tracer: this copy has no symbolic links. Unpack it with unzip or "
        "tar (git: git config core.symlinks true; git checkout vramcast), or install it from here: pip install . (not -e)."
    )

if TYPE_CHECKING:
    from vramcast.core.errors import (
        ArtifactError,
        CacheError,
        CannotEstimate,
        CompilerError,
        DatasetError,
        DoesNotFit,
        DownloadError,
        IncompleteTrace,
        JobError,
        NoAnswer,
        NotSaid,
        NullGpuError,
        OtherAllocator,
        OutputError,
        Overloaded,
        RequestRefused,
        SimulatedOutOfMemory,
        TimeLimit,
        TraceFileError,
        UsageError,
        VramcastError,
        WorkerError,
    )
    from vramcast.estimates.advice import Advice, advise
    from vramcast.estimates.estimator import Estimator, estimate, estimate_command
    from vramcast.estimates.result import Estimate
    from vramcast.jobs.job import TensorSpec

__version__ = "0.2.0"

__all__ = [
    "Advice",
    "ArtifactError",
    "CacheError",
    "CannotEstimate",
    "CompilerError",
    "DatasetError",
    "DoesNotFit",
    "DownloadError",
    "Estimate",
    "Estimator",
    "IncompleteTrace",
    "JobError",
    "NoAnswer",
    "NotSaid",
    "NullGpuError",
    "OtherAllocator",
    "OutputError",
    "Overloaded",
    "RequestRefused",
    "SimulatedOutOfMemory",
    "TensorSpec",
    "TimeLimit",
    "TraceFileError",
    "UsageError",
    "VramcastError",
    "WorkerError",
    "__version__",
    "advise",
    "estimate",
    "estimate_command",
]

_HOMES = {
    "Advice": "estimates.advice", "Estimate": "estimates.result", "Estimator": "estimates.estimator", "TensorSpec": "jobs.job",
    "advise": "estimates.advice", "estimate": "estimates.estimator", "estimate_command": "estimates.estimator",
}  # fmt: skip


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic `%%vram`, for `%load_ext vramcast`."""
    from vramcast.cli.notebook import register

    register(shell)


def __getattr__(name: str) -> Any:
    # Lazy, so that the helper processes (`python -m vramcast.tracer...`) start without importing the public API.
    if name not in __all__:
        raise AttributeError(f"module 'vramcast' has no attribute '{name}'")
    return getattr(importlib.import_module(f"vramcast.{_HOMES.get(name, 'core.errors')}"), name)
