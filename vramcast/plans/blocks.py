"""Blocks of a model that may be recomputed: the activations that each holds, and its forward time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramcast.tracer.format.trace import Action, Category, Phase, Trace


@dataclass(frozen=True, slots=True)
class ModuleBlock:
    """A module path up to its first number, with modules below it: `layer1.0`, `transformer.h.3`.

    Attributes:
        path: The path.
        held_bytes: Activations that it holds at the peak of live blocks.
        forward_us: Forward time of its operators in all steps, by the roofline model; 0 if no accesses were traced.
    """

    path: str
    held_bytes: int
    forward_us: int


def blocks_by_worth(trace: Trace, accesses: Trace | None) -> list[ModuleBlock]:
    """Return the blocks that request memory, by bytes held per forward time, largest ratio first.

    Args:
        trace: Trace of the job.
        accesses: Trace of the same job with READ and WRITE rows; None: sort by bytes held.
    """
    _, row = trace.peak_live()
    live = trace.live_at(row)
    live = live[trace.category[live] == Category.ACTIVATION]
    held = _by_block(trace, trace.module[live], trace.rounded_bytes()[live])
    takes: dict[str, int] = {}
    if accesses is not None:
        spent_us = forward_us(accesses)
        writes = np.flatnonzero(spent_us)  # one output suffices to find an operator's block
        takes = _by_block(accesses, accesses.module[accesses.block[writes]], spent_us[writes])
    found = [ModuleBlock(path, size_bytes, takes.get(path, 0)) for path, size_bytes in held.items()]
    return sorted(found, key=lambda block: -block.held_bytes / max(block.forward_us, 1))


def forward_us(accesses: Trace) -> npt.NDArray[np.int64]:
    """Return the modelled time of each forward operator at one of its WRITE rows, int64 [rows]; 0 elsewhere."""
    rows = np.flatnonzero(accesses.is_access())
    begins = np.unique(accesses.time_us[rows])
    takes = np.diff(begins, append=max(accesses.header["clock"]["end_us"], begins[-1])) if len(begins) else begins
    writes = np.flatnonzero((accesses.action == Action.WRITE) & (accesses.phase == Phase.FORWARD))
    begin, first = np.unique(accesses.time_us[writes], return_index=True)
    found = np.zeros(len(accesses), np.int64)
    found[writes[first]] = takes[np.searchsorted(begins, begin)]
    return found


def _by_block(trace: Trace, modules: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> dict[str, int]:
    """Return the sum of `values` by block of modules; modules outside all blocks are left out."""
    known = modules >= 0
    sums = np.zeros(len(trace.modules), np.int64)
    np.add.at(sums, modules[known], values[known])
    blocks = [_block(path) for path in trace.modules]
    total = {block: 0 for block, path in zip(blocks, trace.modules, strict=True) if block and block != path}
    for block, value in zip(blocks, sums.tolist(), strict=True):
        if block in total:
            total[block] += value
    return total


def _block(path: str) -> str:
    """Return a module path up to its first number; "" if it has none."""
    parts = path.split(".")
    return ".".join(parts[: next((i + 1 for i, part in enumerate(parts) if part.isdigit()), 0)])
