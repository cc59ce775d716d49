"""Thirteen programs whose memory depends on values, on a batch of rows x 1024 floats.

TARGET is benchmarks/surveys/value_programs.py:NAME.

Each selects a part of its input whose size depends on the input's values, and repeats this, so that a wrong size is visible.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_COPIES = 60  # arbitrary: enough that an empty selection is far from a full one


def _lengths(x: torch.Tensor) -> torch.Tensor:
    return (x.detach()[:, 0] * 1000).long()


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x.flatten() if torch.isfinite(x).all() else x[:1].flatten()


def _close(x: torch.Tensor) -> torch.Tensor:
    return x.flatten() if torch.allclose(x, x) else x[:1].flatten()


def _padded(x: torch.Tensor) -> torch.Tensor:
    rows = [row[:length] for row, length in zip(x, _lengths(x).tolist(), strict=True)]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True).flatten()


def _coalesced(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.numel() // 2, device=x.device).repeat(2)[None]
    return torch.sparse_coo_tensor(places, x.detach().flatten(), (x.numel(),)).coalesce().values()


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mask": lambda x: x[x.detach() < 1e9],
    "nonzero": lambda x: x.flatten()[(x.detach().flatten() < 1e9).nonzero()[:, 0]],
    "where": lambda x: torch.where(x.detach().flatten() < 1e9)[0].float(),
    "masked_select": lambda x: x.masked_select(x.detach() < 0.9),
    "unique": lambda x: torch.unique(x.detach()),
    "one_hot": lambda x: functional.one_hot(_lengths(x)).flatten().float(),
    "bincount": lambda x: torch.bincount((x.detach().flatten() * 1e6).long()).float(),
    "branch": _branch,
    "allclose": _close,
    "repeat_interleave": lambda x: x.repeat_interleave((x.detach()[:, 0] * 10).long(), dim=0).flatten(),
    "tolist": _padded,
    "to_sparse": lambda x: x.detach().to_sparse().values(),
    "coalesce": _coalesced,
}
# measured: `reserved` in MiB of the CPU tracer, whose run has real values, by rows; 2026-11.
TRUTH_MIB: dict[str, dict[int, int]] = {
    "mask": {64: 66, 512: 502, 1088: 1046, 2048: 1942},
    "nonzero": {64: 66, 512: 502, 1088: 1046, 2048: 1958},
    "where": {64: 66, 512: 502, 1088: 1046, 2048: 1958},
    "masked_select": {64: 58, 512: 462, 1088: 942, 2048: 1758},
    "unique": {64: 66, 512: 502, 1088: 1014, 2048: 1830},
    "one_hot": {64: 66, 512: 494, 1088: 1022, 2048: 1918},
    "bincount": {64: 942, 512: 942, 1088: 962, 2048: 958},
    "branch": {64: 66, 512: 502, 1088: 1046, 2048: 1962},
    "allclose": {64: 66, 512: 502, 1088: 1046, 2048: 1942},
    "repeat_interleave": {64: 294, 512: 2254, 1088: 4658, 2048: 8756},
    "tolist": {64: 66, 512: 494, 1088: 1022, 2048: 1902},
    "to_sparse": {64: 50, 512: 382, 1088: 790, 2048: 1462},
    "coalesce": {64: 42, 512: 202, 1088: 406, 2048: 758},
}
# These have no maximum shape.
WITHOUT_LARGEST = frozenset({"bincount", "one_hot", "repeat_interleave", "tolist"})


class Program(nn.Module):
    """One of the programs, with a weight to train."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.program = PROGRAMS[name]
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the selected parts of `x`, repeated many times."""
        return self.program(x).repeat(_COPIES) * self.scale


def __getattr__(name: str) -> Any:
    if name in PROGRAMS:
        return functools.partial(Program, name)
    raise AttributeError(name)
