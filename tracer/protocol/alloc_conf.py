"""Under which settings of the caching allocator a job runs, and who chose them.

The first of these which says something:
  1. the job's own description (`--alloc-conf`, `alloc_conf=`; the empty text: torch's defaults);
  2. the job's code: `os.environ[...] = ...` before it first touches CUDA, or `torch.cuda.memory._set_allocator_settings`;
  3. the environment in which vramcast was called;
  4. torch's defaults.

torch reads the variables when CUDA is first touched, not when it is imported. # measured: torch 2.11 on the null GPU, 2026-11

Where memory does not pass through the caching allocator, no tracer of ours can follow, and the job is refused.
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
UNCACHED: Final = "PYTORCH_NO_CUDA_MEMORY_CACHING"  # spec: torch's notes on CUDA; it is enough that it is set

Source = Literal["option", "script", "environment", "default"]


@dataclass(frozen=True, slots=True)
class AllocConf:
    """Settings in force, as PYTORCH_CUDA_ALLOC_CONF would say them, and who chose them."""

    value: str = ""
    source: Source = "default"


def of_environment(environment: Mapping[str, str], torch: str | None = None) -> AllocConf:
    """Return what the environment says.

    Args:
        torch: The release which reads it; default: one which reads both variables.
    Raises:
        OtherAllocator: it says that PyTorch shall not use its caching allocator.
    """
    refuse_no_caching(environment)
    release = release_of(torch or "")
    names = VARIABLES if release is None or release >= _BOTH_SINCE else VARIABLES[:1]
    value = next((environment[name] for name in names if name in environment), "")
    refuse_other_backends(value)
    return AllocConf(value, "environment") if value else AllocConf()


def refuse_no_caching(environment: Mapping[str, str]) -> None:
    """Raise where the environment switches the caching allocator off.

    Raises:
        OtherAllocator: it does.
    """
    if UNCACHED in environment:
        raise OtherAllocator(
            f"{UNCACHED} is set: memory then does not pass through PyTorch's caching allocator, which is what is estimated. "
            "Unset it."
        )


def refuse_other_backends(value: str) -> None:
    """Raise where settings leave memory to another allocator than PyTorch's own.

    Raises:
        OtherAllocator: they do.
    """
    backend = re.search(r"(?:^|,)backend:([^,]*)", re.sub(r"\s+", "", value))
    if backend is not None and backend[1] != "native":
        raise OtherAllocator(
            f"The allocator's settings ask for backend:{backend[1]}, which leaves memory to another allocator: only PyTorch's "
            "own (backend:native) can be estimated."
        )


def forget(environment: MutableMapping[str, str]) -> None:
    """Take every setting of the allocator out of an environment."""
    for name in (*VARIABLES, UNCACHED):
        environment.pop(name, None)


def is_expandable(value: str) -> bool:
    """Return whether settings switch expandable segments on."""
    return "expandable_segments:True" in re.sub(r"\s+", "", value)


class Watch:
    """Follows in the job's own process which settings are in force.

    Args:
        option: Of the job's description; None: it says nothing, and torch reads the environment as ever.
        applies: Whether this process has an allocator which they change; the portable tracers have none.
    """

    def __init__(self, option: str | None, *, applies: bool) -> None:
        self._option = option
        self._applies = applies
        self._inherited = next((os.environ[name] for name in VARIABLES if name in os.environ), "")
        self._said: str | None = None  # by the job, in a call
        self._touched: str | None = None  # the environment's word when CUDA was first touched
        self._another = False
        self.was_expandable = False

    def start(self) -> None:
        """Begin; torch is imported, and CUDA not touched yet.

        Raises:
            UsageError: torch refuses the option.
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
                    raise UsageError(f"alloc_conf '{self._option}' is refused by torch {torch.__version__}: {reason}") from None
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
            OtherAllocator: the job changed to another allocator.
        """
        if self._another:
            raise OtherAllocator(
                "The job called torch.cuda.memory.change_current_allocator: memory then does not pass through PyTorch's "
                "caching allocator, which is what is estimated."
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
            if self._option is not None:  # which wins
                return
            if self._applies:
                original(value)
            self._said = value
            self.was_expandable |= is_expandable(value)

        return note

    def _refused(self, allocator: Any) -> None:
        # Noted as well: the job may catch what is raised here.
        self._another = True
        raise OtherAllocator("torch.cuda.memory.change_current_allocator cannot be followed.")
