"""Jobs that profile themselves: PyTorch has one profiler, used by the recorder, so a job's own profile is empty.

A second profiler would end ours. A job's own profile has no events: the times on a card that does not exist would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.hooks.torch_api import places


class NoResults:
    """The result of a profile without events. spec: torch 2.11, torch/csrc/autograd/init.cpp, _ProfilerResult"""

    def __bool__(self) -> bool:
        """Return False: there is nothing to parse."""
        return False

    def events(self) -> list[Any]:
        """Return no events."""
        return []

    experimental_event_tree = events

    def trace_start_ns(self) -> int:
        """Return 0, the begin of time."""
        return 0

    def save(self, path: str) -> None:
        """Write a trace without events."""
        Path(path).write_text('{"traceEvents": []}', encoding="utf-8")


class JobProfiles:
    """A switch that disables profiling except inside `ours`."""

    def __init__(self) -> None:
        self._is_ours = False

    def replaced(self) -> list[ReplacedAttribute]:
        """Replace PyTorch's profiler for the job; return the handles that restore it."""
        return [ReplacedAttribute(*place, self._only_ours) for place in places("profiles")]

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Mark the context as the begin or end of our own profile."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def _only_ours(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if self._is_ours else NoResults()

        return call
