"""vramcast: how much GPU memory will this PyTorch training job take?"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "tracer").is_dir():
    # A checkout or an editable install: the rooms stand beside this folder and carry no __init__.py, so that none of
    # them shadows an installed package of the same name (Hugging Face's `datasets`, a user's `models`).
    # A wheel has them inside this folder (package-dir in pyproject.toml), and this branch is not taken.
    __path__.append(str(_ROOT))

from vramcast.errors import (  # noqa: E402  (the rooms must be on the path first)
    CannotEstimate,
    JobError,
    NullGpuError,
    TraceFileError,
    UsageError,
    VramcastError,
    WorkerError,
)
from vramcast.estimate import estimate  # noqa: E402
from vramcast.job import TensorSpec  # noqa: E402
from vramcast.result import Estimate  # noqa: E402

__version__ = "0.1.0.dev0"

__all__ = [
    "CannotEstimate",
    "Estimate",
    "JobError",
    "NullGpuError",
    "TensorSpec",
    "TraceFileError",
    "UsageError",
    "VramcastError",
    "WorkerError",
    "__version__",
    "estimate",
]
