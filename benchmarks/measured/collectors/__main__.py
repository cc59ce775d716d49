"""Write collected.csv from copies of public repositories; rows without a license go to build/measured/collected.csv.

    python -m benchmarks.measured.collectors FOLDER

FOLDER has a git repository for each source, bare or not, as OWNER+NAME or OWNER+NAME/repo. A source without one keeps the rows
that its file has. The rows name the commit that was read, so another commit gives other rows.
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
from benchmarks.measured.measured_run import COLLECTED, NOT_DISTRIBUTED, MeasuredRun, read_runs, sources, write_runs
from benchmarks.measured.screens import screened
from benchmarks.tables import table

COLLECTORS: Final[dict[str, Callable[[Checkout], Iterator[MeasuredRun]]]] = {
    module.REPOSITORY: module.runs for module in (detectors, golden_values, segment_anything, self_supervised, train_pipelines)
} | {detectors.SUBMISSIONS: detectors.submissions}


def collected(repository: str, folder: Path) -> list[MeasuredRun]:
    """Return the rows of a repository: read anew if the folder has it, else those that its file has."""
    place = folder / repository.replace("/", "+")
    place = place / "repo" if (place / "repo").exists() else place
    source = sources().get(repository)
    if not place.exists():
        path = COLLECTED if source else NOT_DISTRIBUTED
        return [run for run in read_runs(path) if run.repository == repository] if path.exists() else []
    reason = source.row["reason"] if source else "not distributed: no license"
    found = [screened(run) for run in COLLECTORS[repository](GitCheckout(place))]
    return [run if run.reason else replace(run, reason=reason) for run in found]


def main() -> None:
    """Write both files and print how many runs each source has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    runs = [run for repository in sorted(COLLECTORS) for run in collected(repository, folder)]
    write_runs((run for run in runs if run.repository in sources()), COLLECTED)
    NOT_DISTRIBUTED.parent.mkdir(parents=True, exist_ok=True)
    write_runs((run for run in runs if run.repository not in sources()), NOT_DISTRIBUTED)
    counts = Counter((run.repository, run.quality) for run in runs)
    print(table(["repository", "quality", "n"], [[*key, n] for key, n in sorted(counts.items())], "ll"))


if __name__ == "__main__":
    main()
