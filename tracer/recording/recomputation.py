"""Recomputation of some modules' activations: torch.utils.checkpoint around their forward passes, as a user would write it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from vramcast.tracer.program.variations import recompute


@contextmanager
def installed(paths: Sequence[str]) -> Iterator[None]:
    """Recompute the modules at these paths inside; each is wrapped when a module that has the path first runs.

    Args:
        paths: Paths from a whole model, as `torch.nn.Module.get_submodule` takes them.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4)))
        >>> with installed(["0"]):
        ...     model(torch.ones(2, 4)).sum().backward()
        >>> model[0].forward.func is torch.utils.checkpoint.checkpoint
        True
    """
    left = set(paths)

    def wrap(module: torch.nn.Module, _: Any) -> None:
        for path in sorted(left):
            try:
                block = module.get_submodule(path)
            except AttributeError:
                continue
            left.remove(path)
            recompute(block)

    handle = register_module_forward_pre_hook(wrap)
    try:
        yield
    finally:
        handle.remove()
