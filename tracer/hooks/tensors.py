"""The tensors among an operator's arguments."""

from __future__ import annotations

from typing import Any

import torch


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """Return all tensors in `values`, inside lists, tuples and dicts too; in no certain order."""
    found = []
    pending = [*values]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            pending.extend(value)
        elif isinstance(value, dict):
            pending.extend(value.values())
    return found
