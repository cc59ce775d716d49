"""Lets a `Course` know what a job does: what it makes of optimizers, data loaders and checkpoints, and its backward passes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from vramcast.tracer import torch_api
from vramcast.tracer.course import Course

_open_ranges = 0


def open_ranges() -> int:
    """Return how many of `torch.profiler.record_function`'s ranges are open: a profile must not end inside of one."""
    return _open_ranges


class _Replaced:
    """An attribute which stands for another while a job runs."""

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._place = owner, name, getattr(owner, name)
        setattr(owner, name, functools.wraps(self._place[2])(wrap(self._place[2])))

    def remove(self) -> None:
        """Put it back."""
        setattr(*self._place)


def follow(course: Course) -> list[Any]:
    """Tell `course` what happens from here on; return handles whose `remove()` ends it."""
    wrapped: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (torch.optim.Optimizer, "__init__", lambda original: _making(original, course)),
        (torch, "save", lambda original: _saving(original, course)),
        (torch.autograd.profiler.record_function, "__enter__", lambda original: _counted(original, 1)),
        (torch.autograd.profiler.record_function, "__exit__", lambda original: _counted(original, -1)),
    ]
    wrapped += [(*place, lambda original: _backward(original, course)) for place in torch_api.places("run_backward")]
    wrapped += [(*place, lambda original: _giving(original, course)) for place in torch_api.places("next_batch")]
    wrapped += [(*place, lambda original: _beginning(original, course)) for place in torch_api.places("begin_pass")]
    with contextlib.suppress(ImportError):
        import safetensors.torch

        wrapped.append((safetensors.torch, "save_file", lambda original: _saving(original, course)))
    return [_Replaced(*place) for place in wrapped]


def _counted(original: Any, change: int) -> Any:
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _open_ranges
        _open_ranges += change
        return original(*args, **kwargs)

    return counted


def _making(original: Any, course: Course) -> Any:
    def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        course.exists(optimizer)

    return made


def _backward(original: Any, course: Course) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with course.backward():
            return original(*args, **kwargs)

    return run


def _giving(original: Any, course: Course) -> Any:
    def given(iterator: Any) -> Any:
        if not course.gives(iterator, has_grad=torch.is_grad_enabled()):
            raise StopIteration
        return original(iterator)

    return given


def _beginning(original: Any, course: Course) -> Any:
    def begin(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        course.begins(iterator)
        return original(iterator, *args, **kwargs)

    return begin


def _saving(original: Any, course: Course) -> Any:
    def save(*args: Any, **kwargs: Any) -> Any:
        with course.saving():
            return original(*args, **kwargs)

    return save
