"""Importers of measured runs: write runs.csv from tables of public data, for rows with a license that allows it.

    python -m benchmarks.measured.importers

The tables are below $VRAMCAST_SHARED/data, or in ../shared/data next to the checkout. A row is distributed if it names its
commit, and if its own license and that of its repository in sources.toml are the same. The other rows are read from the tables
each time (`every_run`). The same tables give the same file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from benchmarks.accuracy.runner import has_rows, read_rows
from benchmarks.measured import logs, published_tables, screens
from benchmarks.measured.cells import Row
from benchmarks.measured.measured_run import (
    COLLECTED,
    NOT_DISTRIBUTED,
    RUNS,
    MeasuredRun,
    Source,
    cells_of,
    read_runs,
    run_of,
    sources,
    write_runs,
)  # fmt: skip
from benchmarks.tables import table

IMPORTERS: Final[dict[str, Callable[[Iterable[Row]], Iterator[MeasuredRun]]]] = {
    "xmem_runs.csv": published_tables.xmem_runs,
    "public/torchtitan.csv": published_tables.paged_runs,
    "public/torchtitan_tables.csv": published_tables.paged_runs,
    "public/fsdp_qlora.csv": published_tables.paged_runs,
    "public/nanovlm.csv": published_tables.paged_runs,
    "public/vision.csv": published_tables.vision_runs,
    "public/timm_largest_batch.csv": published_tables.edge_runs,
    "public/finetune_logs.csv": logs.tuning_runs,
    "public/yolo_logs.csv": logs.yolo_runs,
    "public/yolo_recent.csv": logs.yolo_runs,
    "public/unsloth.csv": logs.unsloth_runs,
    "public/parameter_golf.csv": logs.golf_runs,
    "public/modded_nanogpt.csv": published_tables.paged_runs,
    "public/ms_swift.csv": published_tables.paged_runs,
    "peft.csv": published_tables.sheet_runs,
    "zoo.csv": published_tables.sheet_runs,
    "timm_a100.csv": published_tables.sheet_runs,
    "gpumemnet_cnn_step1.csv": published_tables.gpumemnet_runs,
    "gpumemnet_mlp_step1.csv": published_tables.gpumemnet_runs,
    "gpumemnet_mlp_step2.csv": published_tables.gpumemnet_runs,
}


def is_allowed(run: MeasuredRun, known: dict[str, Source]) -> bool:
    """Return whether a run may be distributed: its repository is in sources.toml, with the license that its row names."""
    source = known.get(run.repository)
    return source is not None and source.licence == run.licence and re.fullmatch("[0-9a-f]{40}", run.commit) is not None


def imported() -> list[MeasuredRun]:
    """Return the runs that may be distributed, in the order of the tables, with what their sources give."""
    known = sources()
    found = [run for name in IMPORTERS for run in _runs_of(name) if is_allowed(run, known)]
    return [_as_its_source(run, known[run.repository]) for run in found]


def _as_its_source(run: MeasuredRun, source: Source) -> MeasuredRun:
    """Return a run with what its source gives; a source that names a reason names it for all rows that no rule leaves out."""
    cells = cells_of(run, source)
    if "reason" in source.row and run.quality != "screened":
        cells["reason"] = ""
    return run_of(cells, source)


def outside() -> list[MeasuredRun]:
    """Return the runs of the tables that are here and may not be distributed."""
    known = sources()
    return [run for name in IMPORTERS if has_rows(name) for run in _runs_of(name) if not is_allowed(run, known)]


def every_run() -> list[MeasuredRun]:
    """Return the runs of runs.csv, of collected.csv, and those outside, as far as they are here."""
    collected = [run for path in (COLLECTED, NOT_DISTRIBUTED) if path.exists() for run in read_runs(path)]
    return [*read_runs(), *collected, *outside()]


def _runs_of(name: str) -> Iterator[MeasuredRun]:
    return (screens.screened(run) for run in IMPORTERS[name](read_rows(name)))


def main() -> None:
    """Write runs.csv and print how many runs each source has."""
    runs = imported()
    write_runs(runs)
    counts = Counter((run.repository, run.licence, run.figure) for run in runs)
    print(table(["repository", "license", "figure", "n"], [[*key, n] for key, n in sorted(counts.items())], "lll"))
    print(f"\n{RUNS}: {len(runs)} runs, {RUNS.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
