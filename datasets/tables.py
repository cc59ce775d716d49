"""Sets of runs as Parquet files: one row per run, one column per field, named `workload.batch`,
`measurement.reserved_bytes`, ...

The columns' types come from the fields of `Run`. Features and libraries are maps, workspaces lists of (op, bytes). The
file's metadata has the schema's version; a missing column is unknown in every row, so that older files stay readable. Needs
pyarrow (`pip install ".[datasets]"`), unlike measuring.
"""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from vramcast.core.errors import DatasetError
from vramcast.core.extras import needed
from vramcast.core.files import atomic_write
from vramcast.core.plain import to_plain
from vramcast.datasets.journal import JournalContent, RejectedRow
from vramcast.datasets.run import SCHEMA, Run

if TYPE_CHECKING:
    import pyarrow

_GROUPS = ("workload", "passport", "measurement")
_VERSION_KEY = b"vramcast.schema"
_READ_LIMIT_BYTES = 2**31  # arbitrary: some millions of runs


def _arrow() -> Any:
    with needed("A Parquet file (.jsonl needs nothing)", "datasets", raises=DatasetError):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def schema() -> pyarrow.Schema:
    """Return the columns and their types."""
    arrow = _arrow()
    hints = get_type_hints(Run)
    columns = [arrow.field("id", arrow.string(), nullable=False)]
    for group in _GROUPS:
        fields = get_type_hints(hints[group])
        columns += [
            arrow.field(f"{group}.{field.name}", _type_of(fields[field.name])) for field in dataclasses.fields(hints[group])
        ]
    return arrow.schema(columns, metadata={_VERSION_KEY: str(SCHEMA).encode()})


def _type_of(kind: Any) -> Any:
    arrow = _arrow()
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (kind,) = [argument for argument in arguments if argument is not type(None)]
        return _type_of(kind)
    if origin is Literal:
        return arrow.string()
    if origin is dict:
        return arrow.map_(arrow.string(), _type_of(arguments[1]))
    if origin is tuple and arguments[-1] is Ellipsis:
        return arrow.list_(_type_of(arguments[0]))
    if origin is tuple:
        return arrow.struct([(f"f{i}", _type_of(argument)) for i, argument in enumerate(arguments)])
    return {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}[kind]


def write_runs(runs: Iterable[Run], path: str | os.PathLike[str]) -> None:
    """Write a set; the file appears complete or not at all.

    Raises:
        DatasetError: Two runs have the same id, pyarrow is not installed, or the file cannot be written.
    """
    arrow = _arrow()
    rows: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run.id in rows:
            raise DatasetError(f"Two runs have the id '{run.id}', but ids must be unique in a set: rename one of them.")
        rows[run.id] = dict(_cells(run))
    table = arrow.Table.from_pylist(list(rows.values()), schema=schema())
    with atomic_write(path, raises=DatasetError) as file:
        arrow.parquet.write_table(table, file, compression="zstd")


def _cells(run: Run) -> Iterator[tuple[str, Any]]:
    yield "id", run.id
    for group in _GROUPS:
        for name, value in to_plain(getattr(run, group)).items():
            if isinstance(value, dict):
                value = list(value.items())
            elif name == "workspaces":
                value = [{"f0": op, "f1": size_bytes} for op, size_bytes in value]
            yield f"{group}.{name}", value


def read_runs(path: str | os.PathLike[str]) -> JournalContent:
    """Return the runs of a Parquet file; rows that are not runs are rejected with the reason.

    Raises:
        DatasetError: It is not a Parquet file of runs, damaged, too large, or of a newer version.
    """
    arrow = _arrow()
    path = Path(path)
    try:
        if path.stat().st_size > _READ_LIMIT_BYTES:
            raise DatasetError(f"'{path}' has more than {_READ_LIMIT_BYTES} bytes: split the set.")
        table = arrow.parquet.read_table(path, partitioning=None)
        rows = table.to_pylist()
    except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
        raise DatasetError(
            f"'{path}' cannot be read as Parquet ({str(error).splitlines()[0][:200]}): give a .parquet file of runs."
        ) from None
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"")
    if not version.isdigit():
        raise DatasetError(f"'{path}' is a Parquet file, but not of vramcast's runs: see datasets/DATASHEET.md.")
    reading = JournalContent()
    for number, row in enumerate(rows):
        try:
            reading.runs.append(Run.from_dict(_run_values(row, int(version))))
        except DatasetError as error:
            reading.rejected.append(RejectedRow(f"{path.name}:{number}", str(error), str(row.get("id"))[:200]))
    return reading


def _run_values(row: dict[str, Any], version: int) -> dict[str, Any]:
    values: dict[str, Any] = {"schema": version, **{group: {} for group in _GROUPS}}
    for column, cell in row.items():
        group, dot, name = column.partition(".")
        if not dot or group not in _GROUPS:
            values[column] = cell
        elif cell is not None:
            values[group][name] = _plain_cell(name, cell)
    return values


def _plain_cell(name: str, cell: Any) -> Any:
    if name in ("features", "libraries"):
        return dict(cell)
    if name == "workspaces":
        return [[pair["f0"], pair["f1"]] for pair in cell]
    return cell


def read_set(path: str | os.PathLike[str]) -> JournalContent:
    """Return the runs of a `.parquet` file, of a `.jsonl` or `.jsonl.gz` journal, or of a folder's `runs.*`.

    Raises:
        DatasetError: The file or folder has none of these, or cannot be read.
    """
    from vramcast.datasets import journal

    path = Path(path)
    if path.is_dir():
        found = [path / name for name in ("runs.parquet", "runs.jsonl", "runs.jsonl.gz") if (path / name).exists()]
        if not found:
            raise DatasetError(f"The folder '{path}' has no runs.parquet and no runs.jsonl: give a data set.")
        path = found[0]
    return read_runs(path) if path.suffix == ".parquet" else journal.read_runs(path)
