"""VRAMBench, a data set of measured runs of other people: its schema, the rows in this repository, and their sources.

runs.csv has a row for each figure that may be distributed. sources.toml has, for each repository that the figures are from, the
license, the copyright line, and the values that all of its rows share. A blank cell of runs.csv has the value that its source
gives, and is unknown if the source gives none. `benchmarks.measured.importers` writes runs.csv, and reads the rows that stay
outside. collected.csv has the same columns; `benchmarks.measured.collectors` writes it from copies of its sources, and puts the
rows of repositories that are not in sources.toml into build/measured/collected.csv.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from vramcast.core.files import digest

RUNS: Final = Path(__file__).with_name("runs.csv")
COLLECTED: Final = Path(__file__).with_name("collected.csv")
NOT_DISTRIBUTED: Final = Path(__file__).parents[2] / "build" / "measured" / "collected.csv"
SOURCES: Final = Path(__file__).with_name("sources.toml")
LICENCES: Final = ("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-4.0", "CC0-1.0", "MIT")  # spec: SPDX
EDGE: Final = "largest batch"
FIGURES: Final = (
    "allocated peak", "reserved peak", "allocated at print", "reserved at print", "process peak", "device peak",
    "device at print", EDGE,
)  # fmt: skip
QUALITIES: Final = ("repeatable", "partly", "figure only", "screened")
STATUSES: Final = ("ok", "oom")
TRAITS: Final = ("convolutions", "compiled", "several ranks", "varied batches")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One figure of one run, or one edge: the largest batch that ran and the next larger one that failed.

    Text that is unknown is empty, a number that is unknown is None.

    Attributes:
        repository: OWNER/NAME on GitHub: the source.
        commit: The commit that has the figure.
        path: The file with the figure; "" if it is in the message of the commit.
        licence: SPDX identifier of the repository's license.
        job: The command, script or configuration that ran.
        script: What identifies the script's text if the source has it: the first 12 digits of its SHA-256.
        model: The model's name in the source.
        batch: Samples of a step on one card; of an edge, the largest that ran.
        failed_batch: Of an edge, the next larger one that was tried and failed.
        sizes: Size of a sample.
        precision, optimizer: As named by the source.
        options: Other facts that decide the job.
        traits: Those of `TRAITS` that are true, with commas between: what the classes of bounds distinguish.
        cards: Number of cards.
        card: The card's name in the source.
        card_bytes: Its memory, as torch reports it.
        torch, cuda, cudnn, os: The machine's software.
        figure: One of `FIGURES`: what was measured.
        value_bytes: The figure; None of an edge.
        unit_rule: How the source's text became bytes.
        status: "oom" if the run ended out of memory: the figure is then the level of that moment.
        quality: One of `QUALITIES`: whether the source says enough to repeat the run, or a rule of `screens` leaves it out.
        reason: Why it is not better, and the traps; of a screened row, the rule.
        published: Other tools' estimates of the same run that the source prints.
    """

    repository: str
    commit: str
    path: str
    licence: str
    job: str
    model: str
    figure: str
    value_bytes: int | None
    unit_rule: str
    quality: str
    reason: str = ""
    status: str = "ok"
    script: str = ""
    batch: int | None = None
    failed_batch: int | None = None
    sizes: str = ""
    precision: str = ""
    optimizer: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    traits: str = ""
    cards: int | None = None
    card: str = ""
    card_bytes: int | None = None
    torch: str = ""
    cuda: str = ""
    cudnn: str = ""
    os: str = ""
    published: Mapping[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The page that has the figure."""
        place = f"blob/{self.commit}/{self.path}" if self.path else f"commit/{self.commit}"
        return f"https://github.com/{self.repository}/{place}".replace(" ", "%20")

    @property
    def measured_bytes(self) -> int:
        """The figure of a run that is not an edge."""
        if self.value_bytes is None:
            raise ValueError(f"{self.model}, {self.figure}: an edge has no figure in bytes.")
        return self.value_bytes

    @property
    def job_key(self) -> str:
        """The identity of the run: its figures have the same key, and so do repeats."""
        what = (self.repository, self.job, self.script, self.model, self.batch, self.sizes, self.precision, self.optimizer)
        machine = (self.cards, self.card, self.torch, self.cuda, self.cudnn, self.os)
        return digest(repr((*what, sorted(self.options.items()), *machine)), digits=12)

    @property
    def key(self) -> str:
        """The identity of the row; rows that repeat another one share its key."""
        where = (self.repository, self.commit, self.path, self.job, self.model)
        what = (str(self.batch), self.sizes, self.precision, self.figure, json.dumps(self.options, sort_keys=True))
        return digest(*where, *what, digits=12)


COLUMNS: Final = tuple(column.name for column in fields(MeasuredRun))
_NUMBERS: Final = ("value_bytes", "batch", "failed_batch", "cards", "card_bytes")
_OBJECTS: Final = ("options", "published")


@dataclass(frozen=True, slots=True)
class Source:
    """A repository of which runs.csv has rows.

    Attributes:
        name: Its name in tables.
        licence: SPDX identifier of its license.
        copyright: The copyright line of its license; "" if the license has none.
        read: The month in which its files were read.
        what: What ran, and how it was measured.
        file: The table of public data that `benchmarks.measured.importers` reads; collected.csv of a source with a collector.
        row: Values of columns that all of its rows share.
    """

    name: str
    licence: str
    copyright: str
    read: str
    what: str
    file: str
    row: Mapping[str, str] = field(default_factory=dict)


_OUTSIDE: Final = Source("", "", "", "", "", "")  # a repository that is not in sources.toml gives its rows nothing


@dataclass(frozen=True, slots=True)
class NotIncluded:
    """A set of measured runs that this repository does not distribute.

    Attributes:
        name: Its name in tables.
        why: Why not.
        where: Where to get it.
        files: Its tables below `$VRAMCAST_SHARED/data`, for the benchmarks that read it.
    """

    name: str
    why: str
    where: str
    files: tuple[str, ...] = ()


@cache
def _sources() -> dict[str, Any]:
    return tomllib.loads(SOURCES.read_text(encoding="utf-8"))


def sources() -> dict[str, Source]:
    """Return the sources of runs.csv by repository."""
    return {repository: Source(**entry) for repository, entry in _sources()["included"].items()}


def not_included() -> list[NotIncluded]:
    """Return the sets that were looked at and are not in runs.csv."""
    return [NotIncluded(**{**entry, "files": tuple(entry.get("files", ()))}) for entry in _sources()["not_included"]]


def cells_of(run: MeasuredRun, source: Source) -> dict[str, str]:
    """Return the cells of a run: blank where its source gives the value."""
    values = {column: getattr(run, column) for column in COLUMNS}
    values |= {column: json.dumps(values[column], sort_keys=True) if values[column] else "" for column in _OBJECTS}
    texts = {column: "" if value is None else str(value) for column, value in values.items()}
    return {column: "" if text == source.row.get(column) else text for column, text in texts.items()}


def run_of(cells: Mapping[str, str], source: Source) -> MeasuredRun:
    """Return the run of a row of runs.csv."""
    values: dict[str, Any] = {column: cells[column] or source.row.get(column, "") for column in COLUMNS}
    values |= {column: int(values[column]) if values[column] else None for column in _NUMBERS}
    values |= {column: json.loads(values[column] or "{}") for column in _OBJECTS}
    return MeasuredRun(**values)


def read_runs(path: Path = RUNS) -> list[MeasuredRun]:
    """Return all runs of the file."""
    known = sources()
    with path.open(newline="", encoding="utf-8") as file:
        return [run_of(row, known.get(row["repository"], _OUTSIDE)) for row in csv.DictReader(file)]


def write_runs(runs: Iterable[MeasuredRun], path: Path = RUNS) -> None:
    """Write the file."""
    known = sources()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells_of(run, known.get(run.repository, _OUTSIDE)) for run in runs)


def runs_of(repository: str) -> list[MeasuredRun]:
    """Return the runs of one source, in the file's order."""
    return [run for run in read_runs() if run.repository == repository]
