"""Alibaba PAI 2020: the sensor table, a headerless CSV with one row per instance; its `.header` file lists the columns.

If `pai_task_table.csv` and `pai_instance_table.csv` are in the same folder as `pai_sensor_table.csv`, they are read for the
GPU type, the GPUs requested, and the status of the instance. They hold millions of rows: cut them to the jobs in question
first.
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
from vramcast.datasets.histories.statuses import PAI, word_of
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Measurement, Passport, Run, Workload

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
    "max_gpu_wrk_mem is documented as GB and read as 2^30 bytes: only then is the example in the trace's description, "
    "2.3994140625, a whole number of MiB (2457)"
)
LICENCE: Final = "Alibaba cluster-trace-gpu-v2020: CC BY 4.0"


def read(path: str | os.PathLike[str]) -> JournalContent:
    """Return one run per instance.

    Raises:
        DatasetError: The file cannot be read.
    """
    tally = Tally(path)
    tasks = {(row["job_name"], row["task_name"]): row for row in _beside(tally, "task", TASK)}
    instances = {row["worker_name"]: row for row in _beside(tally, "instance", INSTANCE)}
    # A user may have put the header on top.
    rows = (row for row in csv_rows(lines(path)) if tuple(cell.strip() for cell in row[1]) != SENSOR)
    for place, cells in by_column(rows, SENSOR, tally, "pai_sensor_table"):
        row = {name: cell.strip() for name, cell in cells.items()}
        task, instance = tasks.get((row["job_name"], row["task_name"]), {}), instances.get(row["worker_name"], {})
        tally.run([(place, ",".join(cells.values()))], _run, row, task, instance)
    tally.note(UNIT_NOTE)
    tally.note(
        "instances may share a card (plan_gpu below 100): peaks belong to the instance; the sampling period is not published"
    )
    return tally.done()


def _beside(tally: Tally, kind: str, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield the rows of another table in the same folder; a note counts its damaged rows."""
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
        raise DatasetError(
            f"plan_gpu is {planned}, but must be a percentage of a card.", kind="plan_gpu is not a percentage of a card"
        )
    if is_missing(row["job_name"]) or is_missing(row["worker_name"]):
        raise DatasetError("The row has no job_name or worker_name, which pai_sensor_table has in each row.")
    # A task's status counts only if the instance's own is unknown.
    word = word_of(instance.get("status") or task.get("status", ""))
    status = PAI.get(word, "unknown")
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
            censored=bool(word) and status != "ok",
            message="" if planned is None or not planned % 100 > 0 else f"requested {planned:g} % of a card",
        ),
    )
