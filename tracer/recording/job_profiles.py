"""A job which profiles itself: PyTorch has one profiler, which records for us, so a job's own profile comes out empty.

A second one would end ours. What a job writes of its profile has no events: the times of a card which is not there are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vramcast.tracer.hooks.replacement import Replaced
from vramcast.tracer.hooks.torch_api import places


class NoResults:
    """What a profile without events gives. spec: torch 2.11, torch/csrc/autograd/init.cpp, _ProfilerResult"""

    def __bool__(self) -> bool:
        """Return that there is nothing to parse."""
        return False

    def events(self) -> list[Any]:
        """Return no events."""
        return []

    experimental_event_tree = events

    def trace_start_ns(self) -> int:
        """Return the beginning of time."""
        return 0

    def save(self, path: str) -> None:
        """Write a trace without events."""
        Path(path).write_text('{"traceEvents": []}', encoding="utf-8")


class JobProfiles:
    """Lets only what runs inside `ours` profile."""

    def __init__(self) -> None:
        self._is_ours = False

    def replaced(self) -> list[Replaced]:
        """Take PyTorch's profiler from the job; returns what gives it back."""
        return [Replaced(*place, self._only_ours) for place in places("profiles")]

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What runs inside begins or ends our own profile."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def _only_ours(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if self._is_ours else NoResults()

        return call
