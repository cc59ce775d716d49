"""Predictions of four tools for xMem's published runs, as its authors printed them, with the results of their second round."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Final

from benchmarks.accuracy.runner import data_folder
from vramcast.learner.evaluation.scored_run import Scored

TOOLS: Final = {"xMem": "xmem", "DNNMem": "dnnmem", "SchedTune": "schedtune", "LLMem": "llmem"}


def tool_run(row: Mapping[str, str], number: int, tool: str) -> Scored | None:
    """Return a tool's prediction for a row of xMem's runs, None without one."""
    estimated = float(row[f"{tool}_bytes"] or 0)
    if estimated <= 0:
        return None
    survived = row.get(f"{tool}_round2_oom", "")
    return Scored(
        id=f"xmem {number}",
        group=row["model"],
        family=row["family"],
        gpu=row["gpu"],
        optimizer=row["optimizer"],
        measured_bytes=int(row["ground_bytes"]),
        estimated_bytes=round(estimated),
        card_bytes=int(row["total_gpu_memory"]),
        ran_out_of_memory=row["real_oom"] == "True",
        said_out_of_memory=row[f"{tool}_pred_oom"] == "True",
        ran_at=round(estimated) if survived == "False" else None,
        died_at=round(estimated) if survived == "True" else None,
        batch_size=int(row["batch"]),
    )


def tool_runs(tool: str) -> list[Scored]:
    """Return all predictions of a tool for xMem's runs; none if the runs are missing."""
    path = data_folder() / "xmem_runs.csv"
    if not path.exists():
        return []
    with open(path, newline="") as file:
        found = (tool_run(row, number, tool) for number, row in enumerate(csv.DictReader(file)))
        return [run for run in found if run is not None]
