"""The formats of `vramcast import`: name -> reader."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.datasets.journal import JournalContent, read_runs


@dataclass(frozen=True, slots=True)
class Format:
    """A format: `read` takes a path and returns a Reading, or raises DatasetError or TraceFileError.

    `takes_script`: it also takes the script that wrote the file, as `script`; `takes_columns`: a choice of columns.
    """

    name: str
    summary: str
    read: Callable[..., JournalContent]
    takes_script: bool = False
    takes_columns: bool = False


def _reader(module: str) -> Callable[..., JournalContent]:
    """Return the reader in a module of this folder, which is imported at its first call."""

    def read(path: str | os.PathLike[str], **options: Any) -> JournalContent:
        reading: JournalContent = importlib.import_module(f"vramcast.datasets.histories.{module}").read(path, **options)
        return reading

    return read


def read_journal(path: str | os.PathLike[str]) -> JournalContent:
    """Return the runs of one of our own journals; of equal ids the last line counts."""
    reading = read_runs(path)
    name = os.path.basename(os.fspath(path))
    reading.notes.insert(
        0, f"{name}: {len(reading.runs)} runs, {len(reading.rejected)} rejected; of equal ids the last line counts"
    )
    return reading


FORMATS: Final = {
    one.name: one
    for one in (
        Format("sacct", "Slurm: sacct -P, one run per job", _reader("sacct")),
        Format("sacct-json", "Slurm: sacct --json, one run per job", _reader("sacct_json")),
        Format("jobstats", "Princeton Jobstats in sacct's AdminComment, one run per card", _reader("jobstats")),
        Format("series", "nvidia-smi, NVML or DCGM samples (CSV, Prometheus), one run per job and card", _reader("series")),
        Format("pai", "Alibaba PAI 2020, pai_sensor_table.csv", _reader("pai")),
        Format("snapshot", "PyTorch memory snapshots, one run per device", _reader("memory_history")),
        Format(
            "logged", "logs of training scripts that print torch's peaks, one run per log", _reader("logged"), takes_script=True
        ),
        Format("csv", "a table of jobs (docs/histories.md), also of W&B and MLflow", _reader("plain_csv"), takes_columns=True),
        Format("runs", "vramcast's journals (.jsonl, .jsonl.gz)", read_journal),
    )
}


def find(name: str, formats: Mapping[str, Format] = FORMATS) -> Format:
    """Return a format by its name.

    Raises:
        UsageError: There is none with this name.
    """
    if name not in formats:
        raise UsageError(f"Format '{name}' is unknown: use one of {', '.join(formats)}.")
    return formats[name]
