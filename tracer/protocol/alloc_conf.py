"""The caching allocator's settings of a job, and their source.

The first of these with settings wins:
  1. the job's own description (`--alloc-conf`, `alloc_conf=`; the empty text: torch's defaults);
  2. the job's code: `os.environ[...] = ...` before it first touches CUDA, or `torch.cuda.memory._set_allocator_settings`;
  3. the environment of vramcast's caller;
  4. torch's defaults.

torch reads the variables when CUDA is first touched, not when it is imported. # measured: torch 2.11 on the null GPU,
2026-11

If memory does not pass through the caching allocator, no tracer can follow it, and the job is rejected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from vramcast.core.errors import OtherAllocator, UsageError
from vramcast.hardware.stack import release_of
from vramcast.tracer.hooks import torch_api

# spec: CUDAAllocatorConfig.h of torch 2.10 to 2.15, in this order. Before, the second has no effect (2.9.1, null GPU).
VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_BOTH_SINCE: Final = (2, 10)
UNCACHED: Final = "PYTORCH_NO_CUDA_MEMORY_CACHING"  # spec: torch's notes on CUDA; any value counts

Source = Literal["option", "script", "environment", "default"]


@dataclass(frozen=True, slots=True)
class AllocConf:
    """The settings in force, in the form of PYTORCH_CUDA_ALLOC_CONF, and their source."""

    value: str = ""
    source: Source = "default"


def of_environment(environment: Mapping[str, str], torch: str | None = None) -> AllocConf:
    """Return the settings of the environment.

    Args:
        torch: The release that reads it; default: one that reads both variables.
    Raises:
        OtherAllocator: The environment switches PyTorch's caching allocator off or selects another.
    """
    refuse_no_caching(environment)
    release = release_of(torch or "")
    names = VARIABLES if release is None or release >= _BOTH_SINCE else VARIABLES[:1]
    value = next((environment[name] for name in names if name in environment), "")
    refuse_other_backends(value)
    return AllocConf(value, "environment") if value else AllocConf()


def refuse_no_caching(environment: Mapping[str, str]) -> None:
    """Raise if the environment switches the caching allocator off.

    Raises:
        OtherAllocator: The allocator is switched off.
    """
    if UNCACHED in environment:
        raise OtherAllocator(
            f"{UNCACHED} is set: memory then bypasses PyTorch's caching allocator and cannot be estimated. Unset it."
        )


def refuse_other_backends(value: str) -> None:
    """Raise if settings select an allocator other than PyTorch's own.

    Raises:
        OtherAllocator: Another allocator is selected.
    """
    backend = re.search(r"(?:^|,)backend:([^,]*)", re.sub(r"\s+", "", value))
    if backend is not None and backend[1] != "native":
        raise OtherAllocator(
            f"The allocator's settings select backend:{backend[1]}, another allocator: only PyTorch's "
            "own (backend:native) can be estimated."
        )


def forget(environment: MutableMapping[str, str]) -> None:
    """Remove every allocator setting from an environment."""
    for name in (*VARIABLES, UNCACHED):
        environment.pop(name, None)


def is_expandable(value: str) -> bool:
    """Return whether settings switch expandable segments on."""
    return "expandable_segments:True" in re.sub(r"\s+", "", value)


class Watch:
    """A watch in the job's own process on the settings in force.

    Args:
        option: Option of the job's description; None: there is none, and torch reads the environment as usual.
        applies: Whether this process has an allocator that they change; the portable tracers have none.
    """

    def __init__(self, option: str | None, *, applies: bool) -> None:
        self._option = option
        self._applies = applies
        self._inherited = next((os.environ[name] for name in VARIABLES if name in os.environ), "")
        self._said: str | None = None  # set by a call of the job
        self._touched: str | None = None  # the environment's settings when CUDA was first touched
        self._another = False
        self.was_expandable = False

    def start(self) -> None:
        """Begin; torch is imported, and CUDA not touched yet.

        Raises:
            UsageError: torch rejects the option.
        """
        import torch

        if self._option is not None:
            for name in VARIABLES:
                os.environ.pop(name, None)
            os.environ[VARIABLES[0]] = self._option
            if self._applies:
                try:
                    torch_api.set_allocator_settings(self._option)
                except (ValueError, RuntimeError, IndexError) as error:
                    reason = (str(error).splitlines() or ["no reason"])[0]
                    raise UsageError(
                        f"alloc_conf '{self._option}' is rejected by torch {torch.__version__}: {reason}"
                    ) from None
            self.was_expandable = is_expandable(self._option)
        for owner, name in torch_api.places("set_allocator_settings"):
            setattr(owner, name, self._noted(getattr(owner, name)))
        for owner, name in torch_api.places("change_allocator"):
            setattr(owner, name, self._refused)
        if self._applies:
            torch_api.lazy_call(self._touch)

    def in_force(self) -> AllocConf:
        """Return the settings at the end of the job.

        Raises:
            OtherAllocator: The job changed to another allocator.
        """
        if self._another:
            raise OtherAllocator(
                "The job called torch.cuda.memory.change_current_allocator: memory then bypasses PyTorch's caching "
                "allocator and cannot be estimated."
            )
        if self._touched is None:
            self._touch()
        assert self._touched is not None
        value = self._touched if self._said is None else self._said
        refuse_other_backends(value)
        if self._option is not None:
            return AllocConf(self._option, "option")
        if self._said is not None:
            return AllocConf(value, "script")
        if not value:
            return AllocConf()
        return AllocConf(value, "environment" if value == self._inherited else "script")

    def _touch(self) -> None:
        import torch

        if self._option is not None:
            refuse_no_caching(os.environ)
            self._touched = self._option
            return
        self._touched = of_environment(os.environ, str(torch.__version__)).value
        if self._said is None:
            self.was_expandable |= is_expandable(self._touched)

    def _noted(self, original: Callable[[str], None]) -> Callable[[str], None]:
        def note(value: str) -> None:
            if self._option is not None:  # the option wins
                return
            if self._applies:
                original(value)
            self._said = value
            self.was_expandable |= is_expandable(value)

        return note

    def _refused(self, allocator: Any) -> None:
        # Recorded as well, because the job may catch this error.
        self._another = True
        raise OtherAllocator("torch.cuda.memory.change_current_allocator cannot be followed.")
