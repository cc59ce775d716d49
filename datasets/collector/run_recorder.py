"""One row per training, from torch's counters; `vramcast.integrations` has the callbacks that write it.

With several cards, the row describes the first process; `gpus` stays 1, because its counters cover one card.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from vramcast.core.errors import DatasetError
from vramcast.datasets.collector import model_facts
from vramcast.datasets.collector.counters import counters, stack
from vramcast.datasets.collector.nvml import COUNTERS_ONLY, Nvml, NvmlAbsent
from vramcast.datasets.journal import Journal
from vramcast.datasets.run import Measurement, Passport, Run, Status, Workload


class RunRecorder:
    """A training that has begun: the peaks are reset, and `end` appends its row to runs.jsonl in a folder."""

    def __init__(self, out: str | os.PathLike[str], name: str | None, model: Any, **workload: Any) -> None:
        import torch

        self._path = Path(out) / "runs.jsonl"
        self._workload = Workload(
            name or Path(sys.argv[0]).name or "python",
            family="script",
            script=tuple(sys.argv),
            model_sha256=model_facts.model_sha256(model),
            features=model_facts.features(model),
            alloc_conf=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            gpus=1,
            **workload,
        )
        self._started = time.perf_counter()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()

    def end(self, status: Status, *, steps: int | None = None, message: str = "") -> None:
        """Append the run's row. A failed write is only a warning, so that the trained model is not lost."""
        process, how = process_bytes()
        seconds = round(time.perf_counter() - self._started, 3)
        measurement = Measurement(
            status, process_bytes=process, censored=status != "ok", steps=steps, seconds=seconds, message=message[:500],
            **counters(message),
        )  # fmt: skip
        passport = Passport("vramcast callback", how=how, **stack())
        try:
            with Journal(self._path) as lines:
                lines.append(Run(f"callback-{uuid.uuid4().hex[:12]}", self._workload, passport, measurement).to_dict())
        except DatasetError as error:
            warnings.warn(f"vramcast: the run's row is lost: {error}", stacklevel=2)


def process_bytes() -> tuple[int | None, str]:
    """Return the process peak from one NVML reading: the present memory, plus memory that torch released since its peak."""
    import torch

    if not torch.cuda.is_initialized():
        return None, COUNTERS_ONLY
    try:
        uuid_ = str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", "")) or None
        now = _nvml(uuid_).by_process().get(os.getpid())
    except NvmlAbsent:
        now = None
    if now is None:
        return None, COUNTERS_ONLY
    given_back = torch.cuda.max_memory_reserved() - torch.cuda.memory_reserved()
    return now + given_back, "nvml process at the end, plus what torch gave back since its peak"


_nvml = cache(Nvml)
