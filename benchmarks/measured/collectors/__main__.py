"""Write collected.csv from copies of public repositories.

    python -m benchmarks.measured.collectors FOLDER

FOLDER has a git repository for each source, bare or not, as OWNER+NAME or OWNER+NAME/repo. A source without one keeps the rows
that collected.csv has. The rows name the commit that was read, so another commit gives other rows.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.measured.collectors import detectors, golden_values, segment_anything, self_supervised, train_pipelines
from benchmarks.measured.collectors.checkout import Checkout, GitCheckout
from benchmarks.measured.measured_run import COLLECTED, MeasuredRun, read_runs, sources, write_runs
from benchmarks.measured.screens import screened
from benchmarks.tables import table

COLLECTORS: Final[dict[str, Callable[[Checkout], Iterator[MeasuredRun]]]] = {
    module.REPOSITORY: module.runs for module in (detectors, golden_values, segment_anything, self_supervised, train_pipelines)
}


def collected(repository: str, folder: Path) -> list[MeasuredRun]:
    """Return the rows of a repository: read anew if the folder has it, else those that collected.csv has."""
    place = folder / repository.replace("/", "+")
    place = place / "repo" if (place / "repo").exists() else place
    if not place.exists():
        return [run for run in read_runs(COLLECTED) if run.repository == repository]
    reason = sources()[repository].row["reason"]
    found = [screened(run) for run in COLLECTORS[repository](GitCheckout(place))]
    return [run if run.reason else replace(run, reason=reason) for run in found]


def main() -> None:
    """Write collected.csv and print how many runs each source has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    runs = [run for repository in sorted(COLLECTORS) for run in collected(repository, folder)]
    write_runs(runs, COLLECTED)
    counts = Counter((run.repository, run.quality) for run in runs)
    print(table(["repository", "quality", "n"], [[*key, n] for key, n in sorted(counts.items())], "ll"))


if __name__ == "__main__":
    main()
