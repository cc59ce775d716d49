"""Predictions of four tools for xMem's published runs, as its authors printed them, with the results of their second round."""

from __future__ import annotations

from typing import Final

from benchmarks.accuracy.xmem import REPOSITORY
from benchmarks.measured.measured_run import MeasuredRun, runs_of
from vramcast.learner.evaluation.scored_run import Scored

TOOLS: Final = {"xMem": "xmem", "DNNMem": "dnnmem", "SchedTune": "schedtune", "LLMem": "llmem"}


def tool_run(run: MeasuredRun, number: int, tool: str) -> Scored | None:
    """Return a tool's prediction for one of xMem's runs, None without one."""
    said = run.published.get(tool, {})
    estimated = said.get("bytes", 0)
    if estimated <= 0:
        return None
    died = said.get("second_oom")
    return Scored(
        id=f"xmem {number}",
        group=run.model,
        family=run.options["family"],
        gpu=run.card,
        optimizer=run.optimizer,
        measured_bytes=run.measured_bytes,
        estimated_bytes=estimated,
        card_bytes=run.card_bytes,
        ran_out_of_memory=run.status == "oom",
        said_out_of_memory=said.get("oom", False),
        ran_at=estimated if died is False else None,
        died_at=estimated if died else None,
        batch_size=run.batch or 0,
    )


def tool_runs(tool: str) -> list[Scored]:
    """Return all predictions of a tool for xMem's runs."""
    found = (tool_run(run, number, tool) for number, run in enumerate(runs_of(REPOSITORY)))
    return [run for run in found if run is not None]
