"""Our own plain table: a CSV whose columns have the names of the fields of a run.

    name,batch_size,optimizer,gpu,gpu_total_bytes,process_mib,status
    resnet50,32,sgdm,NVIDIA A100-SXM4-40GB,42474471424,4530,ok

Columns of other names are recognized (`column_names`) or chosen by `--columns`; the rest is ignored and named once. An
empty cell is unknown. Equal rows without an id are repeats.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any, Final, get_type_hints

from vramcast.core.errors import DatasetError
from vramcast.core.files import digest
from vramcast.core.plain import from_plain
from vramcast.core.units import GIB, MIB
from vramcast.datasets.histories.column_names import Columns, line_of, recognized, suggested
from vramcast.datasets.histories.reader import (
    Tally,
    by_column,
    csv_rows,
    duration_s,
    is_missing,
    lines,
    near_capacity,
    number,
    size_bytes,
    whole,
)
from vramcast.datasets.histories.statuses import WORDS, status_of, word_of
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Measurement, Passport, Run, Workload
from vramcast.jobs.job import TensorSpec, parse_batch
from vramcast.jobs.registry_names import exact_targets
from vramcast.jobs.targets import REGISTRIES

_WHERE: Final = {
    field.name: part for part in (Measurement, Passport, Workload) for field in fields(part) if field.name != "vramcast"
}


def _of_kind(kind: type) -> tuple[str, ...]:
    """Return the fields of this type, or of it and None."""
    return tuple(name for name, part in _WHERE.items() if get_type_hints(part)[name] in (kind, kind | None))


_TEXTS: Final = (*_of_kind(str), "status")
_COUNTS: Final = _of_kind(int)
_NUMBERS: Final = _of_kind(float)
_FLAGS: Final = _of_kind(bool)
_LISTS: Final = ("batch",)  # separated by blanks
_SIZES: Final[dict[str, tuple[str, int | None]]] = {
    f"{name}_{unit}": (f"{name}_bytes", unit_bytes)
    for name in ("allocated", "reserved", "process", "device", "context", "gpu_total", "cap")
    for unit, unit_bytes in (("mib", MIB), ("gib", GIB))
} | {name: (f"{name}_bytes", None) for name in ("allocated", "reserved", "process", "device", "context", "gpu_total", "cap")}
_PRECISIONS: Final = {
    "float32": "fp32", "32-true": "fp32", "bfloat16": "bf16", "bf16-true": "bf16", "float16": "fp16", "16-true": "fp16",
    "bf16-mixed": "amp-bf16", "16-mixed": "amp-fp16",
}  # fmt: skip
_LOOKED_AT: Final = 200  # arbitrary: rows from which columns are suggested
_SHOWN: Final = 30  # arbitrary: columns that a message names
COLUMNS: Final = ("id", *_TEXTS, *_COUNTS, *_NUMBERS, *_FLAGS, *_LISTS, "parameters", *_SIZES)


def read(path: str | os.PathLike[str], *, columns: Mapping[str, str] | None = None) -> JournalContent:
    """Return the rows as runs.

    Args:
        path: A CSV with a header.
        columns: The user's choice of columns, see `column_names.recognized`.
    Raises:
        DatasetError: The file cannot be read, or no column names the job or its peak.
        UsageError: `columns` does not fit the file.
    """
    tally = Tally(path)
    header, rows = _opened(path)
    known = recognized(header, COLUMNS, columns)
    if known.missing:
        raise DatasetError(_incomplete(path, known))
    for note in known.notes:
        tally.note(note)
    if known.ignored:
        tally.note(f"{len(known.ignored)} columns are ignored: {', '.join(name[:40] or '(no name)' for name in known.ignored)}")
    equal: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for place, cells in by_column(rows, range(len(header)), tally):
        text = ",".join(cells.values())
        row = {known.known[name]: cells[i] for i, name in enumerate(header) if name in known.known}
        equal[text] += 1
        tally.run([(place, text)], _run, row, _identity(row, zip(header, cells.values(), strict=True), equal[text]))
        if not is_missing(row.get("status", "")) and word_of(row["status"]) not in WORDS:
            words[row["status"].strip()[:40]] += 1
    for word, count in words.items():
        tally.note(f"the status '{word}' of {count} rows is unknown, so their peaks count as lower bounds")
    return tally.done()


def _opened(path: str | os.PathLike[str]) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return a table's columns, and its rows."""
    rows = csv_rows(line for line in lines(path) if not line[1].startswith("#"))
    _, header = next(rows, (0, []))
    return [name.strip() for name in header], rows


def beginning(path: str | os.PathLike[str]) -> tuple[Columns, list[dict[str, str]]]:
    """Return what a table's columns hold, and its first rows, by its own columns."""
    header, rows = _opened(path)
    first = (dict(zip(header, cells, strict=True)) for _, cells in islice(rows, _LOOKED_AT) if len(cells) == len(header))
    return recognized(header, COLUMNS), [*first]


def _incomplete(path: str | os.PathLike[str], known: Columns) -> str:
    found = suggested(known, beginning(path)[1])
    wanted = {"name": "the job", "peak": "its peak"}
    missing = " and ".join(wanted[one] for one in known.missing)
    others = ", ".join(f"'{name[:40]}'" for name in known.ignored[:_SHOWN]) or "none"
    unclear = {"name": "model", "peak": "peak_mib"}
    asked = {"name" if field == "model" else field.partition("_")[0] for field in found}
    shown = {unclear[one]: "COLUMN" for one in known.missing if one not in asked}
    line = line_of({**shown, **found})
    return f"'{path}' has no column that is known to hold {missing}; the unknown columns are {others}: try {line}."


def _identity(row: Mapping[str, str], cells: Iterable[tuple[str, str]], count: int) -> str:
    """Return the id of a row: its own, else its content and the number of the repeat."""
    own = row.get("id", "").strip()
    return own or digest(*(f"{column}={cell}" for column, cell in cells)) + (f"-{count}" if count > 1 else "")


def _run(row: dict[str, str], identity: str) -> Run:
    values: dict[type, dict[str, Any]] = {Workload: {}, Passport: {"measured_by": "csv"}, Measurement: {"status": "unknown"}}
    for column, cell in row.items():
        if is_missing(cell) or column == "id":
            continue
        name, value = _value(column, cell.strip())
        if name == "batch" and cell.strip().isdigit() and "batch_size" not in row:
            name, value = "batch_size", int(cell)
        if name == "gpu" and cell.strip().isdigit():  # the card's number, not its name
            continue
        if name == "parameters":
            values[Workload]["features"] = {"parameters": float(value)}
        elif name in values[_WHERE[name]] and column in _SIZES:
            raise DatasetError(f"{column} and {name} are both given: give one of them.")
        else:
            values[_WHERE[name]][name] = value
    measured = values[Measurement]
    peak = max((measured.get(name) or 0 for name in ("reserved_bytes", "process_bytes", "device_bytes")), default=0)
    # The table's own censoring counts only if the peaks and the status do not already imply it.
    measured["censored"] = (
        measured.get("censored", False)
        or not (is_missing(row.get("status", "")) or measured["status"] == "ok")
        or near_capacity(peak, values[Passport].get("gpu_total_bytes"))
    )
    name = values[Workload].get("target") or values[Workload].get("name", "")
    found = [name] if name.partition(":")[0] in REGISTRIES else exact_targets(name)
    if found:  # several: the bare name, which the builder of examples refuses with the choices
        values[Workload]["target"] = found[0] if len(found) == 1 else name
    workload = from_plain(Workload, values[Workload], "row")
    try:
        if workload.batch:
            parse_batch(workload.batch)
        if workload.labels:
            TensorSpec.parse(workload.labels)
    except ValueError as error:
        raise DatasetError(str(error), kind="batch or labels are not tensors: write 32x3x224x224") from None
    return Run(
        f"csv-{identity}", workload, from_plain(Passport, values[Passport], "row"), from_plain(Measurement, measured, "row")
    )


def _value(column: str, cell: str) -> tuple[str, Any]:
    if column in _SIZES:
        name, unit = _SIZES[column]
        if unit is None and re.fullmatch(r"[0-9.eE+-]+", cell):
            raise DatasetError(
                f"{column} is {cell[:40]!r} without a unit: name the column {column}_mib, or say --columns '{column}_mib=...'.",
                kind=f"{column} has no unit: name the column {column}_mib, or say --columns '{column}_mib=...'",
            )
        return name, size_bytes(cell, column, unit or 1)
    if column == "image_size" and (square := re.fullmatch(r"(?:[13]x)?(\d+)x\1", cell)):
        cell = square[1]
    if column in _COUNTS:
        value = whole(cell, column)
        # 0 bytes of a card means not measured: unknown.
        return column, value or (None if column.endswith("_bytes") else value)
    if column == "seconds":
        return column, duration_s(cell, column)
    if column == "status":
        return column, status_of(cell)
    if column in ("optimizer", "precision"):
        return column, _PRECISIONS.get(cell.lower(), cell.lower())
    if column in _NUMBERS or column == "parameters":
        return column, number(cell, column)
    if column in _FLAGS:
        if cell.lower() not in ("true", "false", "1", "0"):
            raise DatasetError(
                f"{column} is {cell[:40]!r}, but must be true or false.", kind=f"{column} is neither true nor false"
            )
        return column, cell.lower() in ("true", "1")
    if column in _LISTS:
        return column, re.split(r"\s+", cell)
    return column, cell
