"""Estimates that others printed for a run.

Source: Stone-ResearchLife/xMem (MIT), in `benchmarks/measured/runs.csv`: xMem's own, and its ports of DNNMem, SchedTune and
LLMem. xMem's and DNNMem's contain a `framework_mem` that was measured on the target card. Without an estimate, the tool
does not cover that job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.peers.baselines.baseline import Formula, Sample, Target

TOOLS: Final[dict[str, str]] = {"xmem": "xMem", "dnnmem": "DNNMem", "schedtune": "SchedTune", "llmem": "LLMem"}


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
