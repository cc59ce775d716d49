"""vramcast estimates the GPU memory of a PyTorch job, without a GPU.

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
        "vramcast/tracer is not a link to ../tracer, because this copy has no symbolic links. Unpack it with unzip or "
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
        NothingAsked,
        NullGpuError,
        OtherAllocator,
        OutputError,
        Overloaded,
        RequestRefused,
        SimulatedOutOfMemory,
        TimeLimit,
        TraceFileError,
        UnknownArgument,
        UsageError,
        VramcastError,
        WorkerError,
    )
    from vramcast.core.units import gib, parse_bytes
    from vramcast.estimates.adaptive_level import Online
    from vramcast.estimates.advice import advise
    from vramcast.estimates.advice_rows import Advice
    from vramcast.estimates.estimator import Estimator, estimate, estimate_command
    from vramcast.estimates.largest import Largest, largest
    from vramcast.estimates.result import Estimate
    from vramcast.explanations.explain import explain
    from vramcast.hardware import cards as devices
    from vramcast.jobs.job import TensorSpec
    from vramcast.learner.conformal import models_needed
    from vramcast.learner.evaluation.metrics import evaluate
    from vramcast.learner.evaluation.report import write_report
    from vramcast.learner.evaluation.scored_run import Scored
    from vramcast.plans.planner import plan_pool, plan_swap
    from vramcast.simulator.card import Card
    from vramcast.simulator.fragmentation import fragmentation
    from vramcast.simulator.replay import replay
    from vramcast.simulator.settings import Settings
    from vramcast.simulator.simulation import simulate
    from vramcast.simulator.what_if import case_table, what_if
    from vramcast.tracer.format.snapshot import read_trace
    from vramcast.tracer.format.trace import Trace
    from vramcast.tracer.protocol.run_options import RunOptions

# The public names. Everything else may change in any release.
__all__ = [
    "Advice",
    "ArtifactError",
    "CacheError",
    "CannotEstimate",
    "Card",
    "CompilerError",
    "DatasetError",
    "DoesNotFit",
    "DownloadError",
    "Estimate",
    "Estimator",
    "IncompleteTrace",
    "JobError",
    "Largest",
    "MissingPeerValue",
    "NoAnswer",
    "NothingAsked",
    "NullGpuError",
    "Online",
    "OtherAllocator",
    "OutputError",
    "Overloaded",
    "RequestRefused",
    "RunOptions",
    "Scored",
    "Settings",
    "SimulatedOutOfMemory",
    "TensorSpec",
    "TimeLimit",
    "Trace",
    "TraceFileError",
    "UnknownArgument",
    "UsageError",
    "VramcastError",
    "WorkerError",
    "__version__",
    "advise",
    "case_table",
    "devices",
    "errors",
    "estimate",
    "estimate_command",
    "evaluate",
    "explain",
    "fragmentation",
    "gib",
    "largest",
    "models_needed",
    "parse_bytes",
    "plan_pool",
    "plan_swap",
    "read_trace",
    "replay",
    "simulate",
    "what_if",
    "write_report",
]

_HOMES = {
    "Advice": "vramcast.estimates.advice_rows",
    "Card": "vramcast.simulator.card",
    "Estimate": "vramcast.estimates.result",
    "Estimator": "vramcast.estimates.estimator",
    "Largest": "vramcast.estimates.largest",
    "Online": "vramcast.estimates.adaptive_level",
    "RunOptions": "vramcast.tracer.protocol.run_options",
    "Scored": "vramcast.learner.evaluation.scored_run",
    "Settings": "vramcast.simulator.settings",
    "TensorSpec": "vramcast.jobs.job",
    "Trace": "vramcast.tracer.format.trace",
    "advise": "vramcast.estimates.advice",
    "case_table": "vramcast.simulator.what_if",
    "estimate": "vramcast.estimates.estimator",
    "estimate_command": "vramcast.estimates.estimator",
    "evaluate": "vramcast.learner.evaluation.metrics",
    "explain": "vramcast.explanations.explain",
    "fragmentation": "vramcast.simulator.fragmentation",
    "gib": "vramcast.core.units",
    "largest": "vramcast.estimates.largest",
    "models_needed": "vramcast.learner.conformal",
    "parse_bytes": "vramcast.core.units",
    "plan_pool": "vramcast.plans.planner",
    "plan_swap": "vramcast.plans.planner",
    "read_trace": "vramcast.tracer.format.snapshot",
    "replay": "vramcast.simulator.replay",
    "simulate": "vramcast.simulator.simulation",
    "what_if": "vramcast.simulator.what_if",
    "write_report": "vramcast.learner.evaluation.report",
}
_ERRORS = "vramcast.core.errors"


def _report() -> ModuleType:
    from vramcast import report

    return report


view.register(_report)


class _Alias(ModuleType):
    """A public name for a module of a layer, which is imported when one of its attributes is used."""

    def __init__(self, name: str, home: str) -> None:
        super().__init__(f"{__name__}.{name}")
        self._home = home
        sys.modules[self.__name__] = self  # for `import vramcast.errors` and `from vramcast.errors import UsageError`

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # which `inspect` asks of every module, for pytest at each failure
            raise AttributeError(name)
        return getattr(importlib.import_module(self._home), name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self._home))


if not TYPE_CHECKING:
    devices = _Alias("devices", "vramcast.hardware.cards")
    errors = _Alias("errors", _ERRORS)
    runtime = _Alias("runtime", "vramcast.plans.runtime.follower")


logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application adds its own


def load_ipython_extension(shell: Any) -> None:
    """Register the notebook magic `%%vram`, for `%load_ext vramcast`."""
    from vramcast.cli.notebook import register

    register(shell)


def __getattr__(name: str) -> Any:
    # Lazy, so that the helper processes (`python -m vramcast.tracer...`) start without importing the public API.
    if name not in __all__:
        raise AttributeError(f"module 'vramcast' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES.get(name, _ERRORS)), name)


def __dir__() -> list[str]:
    return __all__
