"""Kernels of ours in place of those that torch has for an operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch


def register(kernels: Mapping[str, Callable[..., Any]], *keys: str) -> torch.library.Library:
    """Register kernels by operator for some dispatch keys; they last as long as the returned library."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch notices that other kernels are replaced
        for operator, kernel in kernels.items():
            for key in keys:
                library.impl(operator, kernel, key)  # type: ignore[no-untyped-call]
    return library
