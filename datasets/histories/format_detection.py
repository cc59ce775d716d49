"""Detection of a history's format from its beginning."""

from __future__ import annotations

import csv
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vramcast.core.errors import DatasetError, UsageError
from vramcast.datasets.histories import plain_csv, series
from vramcast.datasets.histories.reader import opened

SET: Final = "runs"
_LOOKED_AT: Final = 65_536  # arbitrary: bytes; a header is among the first ones
_PAI: Final = "pai_sensor_table"  # spec: the name of Alibaba's file, which has no header


def format_of(path: str | os.PathLike[str], columns: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the name of a file's format, as in `formats.FORMATS`; a folder or a Parquet file is a set of runs.

    Args:
        path: The file.
        columns: The user's choice of columns: a table that has them is a plain one. So is a table that matches no other
            format, for which the reader names the columns that are missing.
    Raises:
        DatasetError: The file cannot be read.
        UsageError: Its format cannot be detected.
    """
    path = Path(path)
    if path.is_dir() or path.suffix == ".parquet":
        return SET
    head = _head(path)
    text = head.decode(errors="replace").lstrip("\ufeff")
    if not text.strip():
        raise DatasetError(f"'{path}' is empty, but a history has rows: check the query that wrote it.")
    if head[:1] == b"\x80":  # spec: the first opcode of a pickle of protocol 2 and later
        return "snapshot"
    if _PAI in path.name:
        return "pai"
    lines = [line for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith("#")), lines[0])
    found = _of_json(text, first) or _of_table(text, first, columns)
    if found is None:
        raise UsageError(f"'{path}' begins with {first[:60]!r}, which matches no format: name the format with --format.")
    return found


def _head(path: Path) -> bytes:
    try:
        with opened(path) as file:
            return file.read(_LOOKED_AT)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"'{path}' cannot be read ({getattr(error, 'strerror', None) or error}): check the path.") from None


def _of_json(text: str, first: str) -> str | None:
    if not first.lstrip().startswith(("{", "[")):
        return None
    if '"workload"' in first and '"measurement"' in first:
        return SET
    return "sacct-json" if '"jobs"' in text or '"job_id"' in text else None


def _of_table(text: str, first: str, columns: Mapping[str, str]) -> str | None:
    if "JS1:" in text and "gpumem" not in text:
        return "jobstats"
    names = [name.strip() for name in next(csv.reader([first]), [])]
    if "|" in first:
        is_sacct = "jobid" in first.lower() or "gres/gpu" in text
        return "sacct" if is_sacct and "JS1:" not in text else None
    if ("name" in names and set(names) <= set(plain_csv.COLUMNS)) or (columns and set(columns.values()) <= set(names)):
        return "csv"
    if series.is_series(first):
        return "series"
    return "csv" if len(names) > 1 and not first.lstrip().startswith(("{", "[")) else None
