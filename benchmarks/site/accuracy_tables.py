"""The appendix of docs/accuracy.md: its long tables, from results that the accuracy benchmarks keep.

    python -m benchmarks.site.accuracy_tables [--out docs/accuracy-tables.md]

Nothing is run. The tables of the measured data sets come from build/accuracy/*.csv (`python -m benchmarks.accuracy.report
--variants` makes them), those of logged and published runs from simulated_runs.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy import gpumemnet_mlp, real_world, timm_a100, xmem
from benchmarks.accuracy.logs.tabled import GROUPS, METRICS, Run, group_table, pairs_of, read_table
from benchmarks.accuracy.report import Rows, coverage_table, pairs_by_family, quantile_table
from benchmarks.accuracy.runner import ROOT, read_csv
from benchmarks.tables import table

PAGE: Final = ROOT / "docs" / "accuracy-tables.md"
SETS: Final = ("xmem", "gpumemnet_mlp", "real_world", "timm_a100")  # of build/accuracy
_FAR: Final = 0.02  # arbitrary: which logged runs are listed one by one

_INTRODUCTION: Final = """\
# Accuracy tables

This appendix has the tables behind [Accuracy](accuracy.md), for readers who want to check a conclusion or look up a model.
`python -m benchmarks.site.accuracy_tables` writes it from kept results; do not edit it by hand.

Error = estimate / measured - 1. *median*, *p90* and *max* are of its size, *signed median* of itself, *under* is the share of
estimates below the measurement. Runs that ended out of memory are left out unless a table says otherwise."""

_RUNS: Final = """\
`benchmarks/accuracy/logs/simulated_runs.csv` has every run. A run of parameter-golf is named by the blobs of its
script and its log. [Jobs of several ranks](multi-gpu.md) has torchtitan's runs and parameter-golf's with eight ranks."""


def far_table(runs: Sequence[Run]) -> str:
    """Return the runs of these groups of which a peak is off by more than 2 %, as a Markdown table."""
    lines = []
    for run in runs:
        if run["source"] == "titan" or not any(is_in(run) for is_in in GROUPS.values()):  # docs/multi-gpu.md has torchtitan's
            continue
        pairs = {metric: pairs_of([run], metric) for metric in METRICS}
        errors = {metric: here / measured - 1 for metric, of in pairs.items() for here, measured in of}
        if any(abs(error) > _FAR for error in errors.values()):
            off = [f"{errors[metric]:+.1%}" if metric in errors else "-" for metric in METRICS]
            lines.append([run["name"], run["torch"] or "-", run["torch_here"] or "-", *off, run["note"]])
    return table(["run", "torch", "torch here", *METRICS, "reason"], lines)


def page_of(kept: Mapping[str, Rows], runs: Sequence[Run]) -> str:
    """Return the page as Markdown.

    Args:
        kept: Rows of each of `SETS`.
        runs: Logged and published runs, as in simulated_runs.csv.
    """
    xmem_rows, mlp_rows, real_rows, timm_rows = (kept[name] for name in SETS)
    families = pairs_by_family(xmem_rows, mlp_rows, timm_rows, real_rows)
    sections = {
        "xMem": xmem.report(xmem_rows),
        "GPUMemNet's MLPs": gpumemnet_mlp.report(mlp_rows),
        "Training scripts of 2025": real_world.report(real_rows),
        "timm": timm_a100.report(timm_rows),
        "Quantiles of measured / estimated process peak - 1": quantile_table(families),
        "Coverage of the built-in bound": coverage_table(families),
        "Logged and published runs": f"{_RUNS}\n\n{group_table(runs)}",
        f"Logged and published runs off by more than {_FAR:.0%}": far_table(runs),
    }
    return "\n\n".join([_INTRODUCTION, *(f"## {title}\n\n{text}" for title, text in sections.items())]) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help="the page (default: docs/accuracy-tables.md)")
    options = parser.parse_args()
    kept = {name: read_csv(name) for name in SETS}
    options.out.write_text(page_of(kept, read_table()), encoding="utf-8")


if __name__ == "__main__":
    main()
