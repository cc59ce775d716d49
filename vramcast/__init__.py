"""vramcast: how much GPU memory will this PyTorch training job take?

import vramcast
est = vramcast.estimate(model, batch, optimizer="adamw", device="a100-40gb")
est.process, est.upper_bound, est.fits()
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vramcast._version import __version__
from vramcast.estimates import view

if importlib.util.find_spec("vramcast.tracer") is None:
    raise ImportError(
        "vramcast/tracer is not a link to ../tracer: this copy has no symbolic links. Unpack it with unzip or "
        "tar (git: git config core.symlinks true; git checkout vramcast), or install it from here: pip install . (not -e)."
    )

if TYPE_CHECKING:
    from vramcast.core import errors
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
        MissingPeerValue,
        NoAnswer,
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
    from vramcast.estimates.adaptive_level import Online
    from vramcast.estimates.advice import advise
    from vramcast.estimates.advice_rows import Advice
    from vramcast.estimates.estimator import Estimator, estimate, estimate_command
    from vramcast.estimates.result import Estimate
    from vramcast.hardware import cards as devices
    from vramcast.jobs.job import TensorSpec
    from vramcast.simulator.fragmentation import fragmentation
    from vramcast.tracer.format.snapshot import read_trace
    from vramcast.tracer.format.trace import Trace

# What is public, in one place. Whatever else can be imported may change with any release.
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
    "MissingPeerValue",
    "NoAnswer",
    "NullGpuError",
    "Online",
    "OtherAllocator",
    "OutputError",
    "Overloaded",
    "RequestRefused",
    "SimulatedOutOfMemory",
    "TensorSpec",
    "TimeLimit",
    "Trace",
    "TraceFileError",
    "UsageError",
    "VramcastError",
    "WorkerError",
    "__version__",
    "advise",
    "devices",
    "errors",
    "estimate",
    "estimate_command",
    "fragmentation",
    "read_trace",
]

_HOMES = {
    "Advice": "vramcast.estimates.advice_rows",
    "Estimate": "vramcast.estimates.result",
    "Estimator": "vramcast.estimates.estimator",
    "Online": "vramcast.estimates.adaptive_level",
    "TensorSpec": "vramcast.jobs.job",
    "Trace": "vramcast.tracer.format.trace",
    "advise": "vramcast.estimates.advice",
    "estimate": "vramcast.estimates.estimator",
    "estimate_command": "vramcast.estimates.estimator",
    "fragmentation": "vramcast.simulator.fragmentation",
    "read_trace": "vramcast.tracer.format.snapshot",
}
_ERRORS = "vramcast.core.errors"


def _report() -> view.View:
    from vramcast import report

    return report


view.register(_report)


class _Alias(ModuleType):
    """A public module that is a file of a layer, loaded when one of its names is asked for."""

    def __init__(self, name: str, home: str) -> None:
        super().__init__(f"{__name__}.{name}")
        self._home = home
        sys.modules[self.__name__] = self  # for `import vramcast.errors` and `from vramcast.errors import UsageError`

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._home), name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self._home))


if not TYPE_CHECKING:
    devices = _Alias("devices", "vramcast.hardware.cards")
    errors = _Alias("errors", _ERRORS)


logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application that wants events adds its own


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic `%%vram`, for `%load_ext vramcast`."""
    from vramcast.cli.notebook import register

    register(shell)


def __getattr__(name: str) -> Any:
    # Lazy, so that the helper processes (`python -m vramcast.tracer...`) start without importing the public API.
    if name not in __all__:
        raise AttributeError(f"module 'vramcast' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES.get(name, _ERRORS)), name)


def __dir__() -> list[str]:
    return __all__
