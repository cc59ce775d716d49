"""Arguments and runs shared by the verbs that learn from measured runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.cli import values
from vramcast.cli.streams import say
from vramcast.cli.terminal import progress
from vramcast.core.extras import needed
from vramcast.datasets.run import Run, with_config
from vramcast.datasets.tables import read_set

if TYPE_CHECKING:
    from vramcast.estimates.run_examples import ExampleSet


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add RUNS, --jobs and --trust-targets."""
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="a .jsonl or .parquet file of runs, or a folder that holds one")
    add_how(parser)


def add_how(parser: argparse.ArgumentParser) -> None:
    """Add --jobs and --trust-targets."""
    parser.add_argument(
        "--jobs",
        type=values.count(1),
        default=1,
        metavar="N",
        help="number of processes for estimates and of threads for learning",
    )
    parser.add_argument(
        "--trust-targets", dest="trust", action="store_true",
        help="run the code that rows of the data sets name (package.module:factory, file.py:factory)",
    )  # fmt: skip


def read_all(paths: list[str]) -> list[Run]:
    """Return the runs of all sets; of equal ids the last one counts.

    Raises:
        DatasetError: A set cannot be read.
    """
    found: dict[str, Run] = {}
    for path in paths:
        reading = read_set(path)
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        found.update({run.id: with_config(run, folder) for run in reading.runs})
        if reading.rejected:
            first = reading.rejected[0]
            say(f"vramcast: {path}: {len(reading.rejected)} rows rejected ({first.where}: {first.reason})")
    return list(found.values())


def examples_of(runs: Sequence[Run], options: argparse.Namespace) -> ExampleSet:
    """Return the examples made from runs; show progress while their jobs are estimated."""
    from vramcast.estimates.run_examples import examples_of_runs

    with needed("Estimating runs", "learn"), progress("estimating runs") as tell:
        return examples_of_runs(runs, n_jobs=options.jobs, trust=options.trust, progress=tell)


def drift_lines(drift: Mapping[str, Any], contexts: Mapping[str, Sequence[int | None]]) -> list[str]:
    """Return lines that report how an older artifact performs on runs that are new to it.

    Args:
        drift: See `vramcast.learner.drift.drift`.
        contexts: (old, new) bytes by stack, where they differ.
    """
    lines = ["coverage of the old bounds on these runs:"]
    for family, one in drift.items():
        held = ", ".join(f"{100 * share:.1f} % at {level}" for level, share in one["coverage"].items())
        residual, unlike = 100 * one["median_residual"], 100 * one["unlike"]
        lines.append(
            f"  {family or '(no family)'}: {one['runs']} runs, covered {held}; median residual {residual:+.2f} %, "
            f"{unlike:.0f} % of the runs unlike the training data"
        )
    for stack, (before, after) in contexts.items():
        was = "unknown" if before is None else f"{before >> 20} MiB"
        lines.append(f"context of {stack}: {was}, now {(after or 0) >> 20} MiB")
    return lines
