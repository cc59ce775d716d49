"""Alibaba PAI 2020: the sensor table, a headerless CSV with a row an instance; the columns are in the `.header` file beside it.

Beside `pai_sensor_table.csv`, `pai_task_table.csv` and `pai_instance_table.csv` are read where they are: GPU type, GPUs asked
for, and what became of the instance. They hold millions of rows: cut them to the jobs in question first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vramcast.core.errors import DatasetError
from vramcast.core.files import digest
from vramcast.core.units import GIB
from vramcast.datasets.histories.reader import Tally, by_column, csv_rows, is_missing, lines, number, size_bytes
from vramcast.datasets.journal import Reading
from vramcast.datasets.run import Measurement, Passport, Run, Status, Workload

# spec: the .header files of cluster-trace-gpu-v2020
SENSOR: Final = (
    "job_name", "task_name", "worker_name", "inst_id", "machine", "gpu_name", "cpu_usage", "gpu_wrk_util", "avg_mem",
    "max_mem", "avg_gpu_wrk_mem", "max_gpu_wrk_mem", "read", "write", "read_count", "write_count",
)  # fmt: skip
TASK: Final = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
INSTANCE: Final = (
    "job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time", "machine",
)  # fmt: skip
UNIT_NOTE: Final = (
    "max_gpu_wrk_mem is documented as GB and taken as 2^30 bytes: the example in the trace's description, 2.3994140625, is a "
    "whole number of MiB (2457) only so"
)
LICENCE: Final = "Alibaba cluster-trace-gpu-v2020: CC BY 4.0"
_STATUS: Final[dict[str, Status]] = {"Terminated": "ok", "Failed": "error", "Interrupted": "killed"}


def read(path: str | os.PathLike[str]) -> Reading:
    """Return one run an instance.

    Raises:
        DatasetError: the file cannot be read.
    """
    tally = Tally(path)
    tasks = {(row["job_name"], row["task_name"]): row for row in _beside(tally, "task", TASK)}
    instances = {row["worker_name"]: row for row in _beside(tally, "instance", INSTANCE)}
    # Someone may have put the header on top.
    rows = (row for row in csv_rows(lines(path)) if tuple(cell.strip() for cell in row[1]) != SENSOR)
    for place, cells in by_column(rows, SENSOR, tally, "pai_sensor_table"):
        row = {name: cell.strip() for name, cell in cells.items()}
        task, instance = tasks.get((row["job_name"], row["task_name"]), {}), instances.get(row["worker_name"], {})
        tally.run([(place, ",".join(cells.values()))], _run, row, task, instance)
    tally.note(UNIT_NOTE)
    tally.note("instances may share a card (plan_gpu below 100): peaks are of the instance, the period is not published")
    return tally.done()


def _beside(tally: Tally, kind: str, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield the rows of another table in the same folder; damaged rows of it are counted in a note."""
    name = tally.path.name.replace("sensor", kind)
    path = Path(tally.path.parent / name)
    if name == tally.path.name or not path.is_file():
        return
    damaged = 0
    for _, cells in csv_rows(lines(path)):
        if len(cells) != len(columns):
            damaged += 1
        else:
            yield dict(zip(columns, (cell.strip() for cell in cells), strict=True))
    tally.note(f"{name} is joined" + (f", {damaged} damaged rows of it are left out" if damaged else ""))


def _run(row: dict[str, str], task: dict[str, str], instance: dict[str, str]) -> Run:
    peak = size_bytes(row["max_gpu_wrk_mem"], "max_gpu_wrk_mem", GIB)
    planned = number(task.get("plan_gpu", ""), "plan_gpu")
    if planned is not None and not 0 <= planned < 1e6:
        raise DatasetError(f"plan_gpu is {planned}: percent of a card are expected.")
    if is_missing(row["job_name"]) or is_missing(row["worker_name"]):
        raise DatasetError("It has no job_name or worker_name: a row of pai_sensor_table is expected.")
    # A task's word counts only where the instance's own is not known.
    status = _STATUS.get(instance.get("status") or task.get("status", ""), "unknown")
    gpu = task.get("gpu_type", "")
    return Run(
        id=f"pai-{digest(row['job_name'], row['task_name'], row['worker_name'], row['gpu_name'])}",
        workload=Workload(
            name=f"{row['job_name']}/{row['task_name']}",
            gpus=max(1, -int(-planned // 100)) if planned else None,
        ),
        passport=Passport(
            measured_by="Alibaba PAI",
            how="pai max_gpu_wrk_mem of the instance",
            gpu=None if is_missing(gpu) else gpu,
            host=row["machine"] or None,
            licence=LICENCE,
        ),
        measurement=Measurement(
            status=status,
            process_bytes=peak,
            censored=status in ("error", "killed"),
            message="" if planned is None or not planned % 100 > 0 else f"asked for {planned:g} % of a card",
        ),
    )
