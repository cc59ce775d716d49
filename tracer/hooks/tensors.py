"""The tensors among an operator's arguments."""

from __future__ import annotations

from typing import Any

import torch


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """Return all tensors in `values`, including those in lists, tuples and dicts, in order."""
    found = []
    pending = [*reversed(values)]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            pending.extend(reversed(value))
        elif isinstance(value, dict):
            pending.extend(reversed(value.values()))
    return found
