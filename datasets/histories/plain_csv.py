"""Our own plain table: a CSV whose columns have the names of the fields of a run.

    name,batch_size,optimizer,gpu,gpu_total_bytes,process_mib,status
    resnet50,32,sgdm,NVIDIA A100-SXM4-40GB,42474471424,4530,ok

docs/histories.md lists every column. An empty cell is unknown. An unknown column is an error that names it.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import Any, Final, get_type_hints

from vramcast.core.errors import DatasetError
from vramcast.core.files import digest
from vramcast.core.plain import from_plain
from vramcast.core.units import GIB, MIB
from vramcast.datasets.histories.reader import Tally, is_missing, near_capacity, number, size_bytes, table, whole
from vramcast.datasets.journal import Reading
from vramcast.datasets.run import Measurement, Passport, Run, Workload
from vramcast.jobs.job import TensorSpec, parse_batch

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
_SIZES: Final = {
    f"{name}_{unit}": (f"{name}_bytes", unit_bytes)
    for name in ("allocated", "reserved", "process", "device", "context", "gpu_total", "cap")
    for unit, unit_bytes in (("mib", MIB), ("gib", GIB))
}
COLUMNS: Final = ("id", *_TEXTS, *_COUNTS, *_NUMBERS, *_FLAGS, *_LISTS, "parameters", *_SIZES)


def read(path: str | os.PathLike[str]) -> Reading:
    """Return the rows as runs.

    Raises:
        DatasetError: The file cannot be read, or has an unknown column.
    """
    tally = Tally(path)
    for place, row in table(path, ("name",), tally):
        if unknown := [name for name in row if name not in COLUMNS]:
            raise DatasetError(f"'{path}' has the unknown column '{unknown[0][:40]}': docs/histories.md lists all columns.")
        tally.run([(place, ",".join(row.values()))], _run, row)
    return tally.done()


def _run(row: dict[str, str]) -> Run:
    values: dict[type, dict[str, Any]] = {Workload: {}, Passport: {"measured_by": "csv"}, Measurement: {"status": "unknown"}}
    for column, cell in row.items():
        if is_missing(cell) or column == "id":
            continue
        name, value = _value(column, cell.strip())
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
        or measured["status"] == "oom"
        or near_capacity(peak, values[Passport].get("gpu_total_bytes"))
    )
    workload = from_plain(Workload, values[Workload], "row")
    if workload.batch:
        parse_batch(workload.batch)
    if workload.labels:
        TensorSpec.parse(workload.labels)
    identity = row.get("id", "").strip() or digest(*(f"{column}={cell}" for column, cell in row.items()))
    return Run(
        f"csv-{identity}", workload, from_plain(Passport, values[Passport], "row"), from_plain(Measurement, measured, "row")
    )


def _value(column: str, cell: str) -> tuple[str, Any]:
    if column in _SIZES:
        name, unit = _SIZES[column]
        return name, size_bytes(cell, column, unit)
    if column in _COUNTS:
        value = whole(cell, column)
        # 0 bytes of a card means not measured: unknown.
        return column, value or (None if column.endswith("_bytes") else value)
    if column in _NUMBERS or column == "parameters":
        return column, number(cell, column)
    if column in _FLAGS:
        if cell.lower() not in ("true", "false", "1", "0"):
            raise DatasetError(f"{column} is {cell[:40]!r}, but must be true or false.")
        return column, cell.lower() in ("true", "1")
    if column in _LISTS:
        return column, re.split(r"\s+", cell)
    return column, cell
