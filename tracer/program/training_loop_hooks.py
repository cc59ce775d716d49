"""Hooks that report a job's optimizers, data loaders, checkpoints and backward passes to a `Course`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.program.slow_batches import SlowBatches
from vramcast.tracer.program.training_loop import Course

_open_ranges = 0


def open_ranges() -> int:
    """Return the number of open ranges of `torch.profiler.record_function`: a profile must not end inside one."""
    return _open_ranges


def checkpoint_writers() -> list[tuple[Any, str]]:
    """Return (owner, name) of the functions that write checkpoints; their arguments are the content, then the file."""
    writers: list[tuple[Any, str]] = [(torch, "save")]
    with contextlib.suppress(ImportError):
        import safetensors.torch

        writers.append((safetensors.torch, "save_file"))
    return writers


def follow(course: Course) -> list[Any]:
    """Report events to `course` from here on; return handles whose `remove()` ends that."""
    wrapped: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (torch.optim.Optimizer, "__init__", lambda original: _making(original, course)),
        (torch.autograd.profiler.record_function, "__enter__", lambda original: _counted(original, 1)),
        (torch.autograd.profiler.record_function, "__exit__", lambda original: _counted(original, -1)),
    ]
    wrapped += [(*place, lambda original: _within(original, course.backward)) for place in torch_api.places("run_backward")]
    if course.is_limited:  # a model's job has neither loaders nor files, and need not import their writers
        wrapped += [(*place, lambda original: _giving(original, course)) for place in torch_api.places("next_batch")]
        wrapped += [(*place, lambda original: _beginning(original, course)) for place in torch_api.places("begin_pass")]
        batches = SlowBatches(course.position)
        wrapped += [(*place, batches.fetching) for place in torch_api.places("load_batch")]
        wrapped += [(*place, batches.waiting) for place in torch_api.places("wait_for_batch")]
        wrapped += [(*place, lambda original: _within(original, course.saving)) for place in checkpoint_writers()]
    return [ReplacedAttribute(*place) for place in wrapped]


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


def _within(original: Any, around: Callable[[], AbstractContextManager[None]]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with around():
            return original(*args, **kwargs)

    return run


def _giving(original: Any, course: Course) -> Any:
    def given(iterator: Any) -> Any:
        if course.sampled is not None:
            course.sampled.draws(iterator, sys._getframe(1))
        course.gives(iterator, has_grad=torch.is_grad_enabled())
        try:
            return original(iterator)
        except StopIteration:
            _ended(iterator, course)
            raise

    return given


def _beginning(original: Any, course: Course) -> Any:
    def begin(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        _ended(iterator, course)
        if hasattr(iterator, torch_api.LOADER_AHEAD):
            setattr(iterator, torch_api.LOADER_AHEAD, 1)  # batches that wait in each worker are in no card's memory
        return original(iterator, *args, **kwargs)

    return begin


def _ended(iterator: Any, course: Course) -> None:
    course.ends(iterator)
    if course.sampled is not None:
        course.sampled.ends(iterator)
