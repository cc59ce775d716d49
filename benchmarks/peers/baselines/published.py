"""Estimates that others printed for a run: columns of a table of xMem's results. The table is not part of vramcast.

Source: Stone-ResearchLife/xMem (MIT), `plot/data*`: xMem's own, and its ports of DNNMem, SchedTune and LLMem. xMem's and
DNNMem's contain a `framework_mem` that was measured on the target card. Empty cells: the tool does not cover that job.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Final

from benchmarks.peers.baselines.baseline import Formula, Sample, Target
from vramcast.core.errors import DatasetError
from vramcast.datasets.histories.reader import Tally, table

TOOLS: Final[dict[str, str]] = {"xmem": "xMem", "dnnmem": "DNNMem", "schedtune": "SchedTune", "llmem": "LLMem"}


def read(path: str | os.PathLike[str]) -> list[dict[str, int]]:
    """Return, for each row of the table, the bytes of every tool with an estimate.

    Raises:
        DatasetError: the file cannot be read, or is not such a table.
    """
    columns = {tool: f"{tool}_bytes" for tool in TOOLS}
    rows = table(path, tuple(columns.values()), Tally(path))
    return [{tool: size for tool, column in columns.items() if (size := _bytes(row[column], where))} for where, row in rows]


def _bytes(text: str, where: object) -> int | None:
    """Return a cell's bytes; None for an empty cell, 0, and -1."""
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DatasetError(f"Row {where} has {text[:40]!r} for bytes: a number is expected.")
    return round(value) if value > 0 else None


class Published(Formula):
    """One tool's printed estimates as a baseline.

    Args:
        tool: Key of `Sample.published`.
        name: Name for tables.
        target: The peak that they were compared with.
    """

    def __init__(self, tool: str, name: str, target: Target) -> None:
        self.tool, self.name = tool, name
        self.target: Target = target

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return the printed estimates; None without one."""
        return [sample.published.get(self.tool) for sample in test]
