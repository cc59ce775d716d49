"""`sacct -P` (also -p, with or without header): jobs from the rows of their steps.

    sacct -P --format=JobID,JobName,User,State,AllocTRES,TRESUsageInMax,Elapsed,End,NodeList

With a header, columns may come in any order; a new header line may follow. Without one, columns are recognized by their
content: the job's id, the list with `gres/gpumem`, the list with `gres/gpu`, the state. The memory is on the rows of the
steps; the job's is the largest of them, without `.extern`, which holds the job's cards but runs none of its code. A peak
that our epilog wrote to the column AdminComment (docs/slurm.md) takes precedence.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final

from vramcast.core.errors import DatasetError
from vramcast.datasets.histories.noted_peak import NotedPeak
from vramcast.datasets.histories.reader import Tally, duration_s, is_missing, size_bytes
from vramcast.datasets.histories.slurm import (
    HOST_OOM,
    HOST_OOM_NOTE,
    NOTE,
    SlurmJob,
    gpus_of,
    parsable_rows,
    split_id,
    state_of,
)
from vramcast.datasets.journal import JournalContent

# In order of preference: the largest of a step's tasks, else the field where some sites keep the peak.
_USAGE: Final = ("tresusageinmax", "tresusageintot", "tresusageinave")
_ALLOCATED: Final = ("alloctres", "reqtres", "allocgres", "reqgres")
_GPUMEM: Final = re.compile(r"(?:^|,)gres/gpumem(?::[A-Za-z0-9_.\-]+)?=([^,]*)")


def read(path: str | os.PathLike[str]) -> JournalContent:
    """Return one run per job.

    Raises:
        DatasetError: The file cannot be read.
    """
    tally = Tally(path)
    jobs: dict[str, SlurmJob] = {}
    rows: dict[str, list[tuple[object, object]]] = {}
    for number, text, header, cells in parsable_rows(path):
        tally.rows += 1
        with tally.guarded(number, text):
            row = _by_header(header, cells) if header else _by_content(cells)
            identity = split_id(row.get("jobid", ""))
            if identity is None:
                raise DatasetError("The row has no job id: add the column JobID to sacct -P.")
            job, step = identity
            peak = _peak(row)
            rows.setdefault(job, []).append((number, text))
            _merge(jobs.setdefault(job, SlurmJob(job)), row, step, peak)
    for job, found in jobs.items():
        found.add_to(tally, rows[job], "sacct", is_told=header is not None)
    tally.note(NOTE)
    if any(found.state == HOST_OOM for found in jobs.values()):
        tally.note(HOST_OOM_NOTE)
    if jobs and header is None:
        tally.note("the file has no header: names, users and times of the jobs are not read")
    return tally.done()


def _by_header(header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise DatasetError(
            f"The row has {len(cells)} cells, the header {len(header)}: check whether a name contains a '|'.",
            kind="the row has more or fewer cells than the header",
        )
    row = dict(zip(header, cells, strict=True))
    row["jobid"] = row.get("jobid") or row.get("jobidraw", "")
    row["usage"] = next((row[name] for name in _USAGE if _GPUMEM.search(row.get(name, ""))), "")
    row["allocated"] = next((row[name] for name in _ALLOCATED if "gpu" in row.get(name, "")), "")
    return row


def _by_content(cells: list[str]) -> dict[str, str]:
    if len(cells) < 2:
        raise DatasetError("The line has no '|': write the file with sacct -P.")
    usage = [cell for cell in cells if _GPUMEM.search(cell)]
    allocated = [cell for cell in cells if re.search(r"(?:^|,)gres/gpu(?::[^=,]*)?=\d", cell)]
    return {
        "jobid": next((cell for cell in cells if split_id(cell)), ""),
        "usage": usage[0] if usage else "",
        "allocated": allocated[-1] if allocated else "",
        "state": next((cell for cell in cells if state_of(cell)), ""),
    }


def _peak(row: dict[str, str]) -> int | None:
    match = _GPUMEM.search(row["usage"])
    return size_bytes(match[1], "gres/gpumem") if match else None


def _merge(job: SlurmJob, row: dict[str, str], step: str, peak: int | None) -> None:
    job.says_gpu |= "gres/gpu" in row["usage"] and step != "extern"
    gpus, gpu = gpus_of(row["allocated"].replace("gres:gpu", "gres/gpu"))
    job.gpus = max(filter(None, (job.gpus, gpus)), default=None)
    job.gpu = job.gpu or gpu
    if peak is not None and step != "extern":
        job.peaks.append(peak)
    if step:
        # The job's own row has its status; a step's counts only without such a row.
        job.state = job.state or (state_of(row.get("state", "")) if step != "extern" else None)
        return
    job.noted = NotedPeak.found_in(row.get("admincomment", "")) or job.noted
    job.state = state_of(row.get("state", "")) or job.state
    for name in ("name", "user", "host", "date"):
        column = {"name": "jobname", "host": "nodelist", "date": "end"}.get(name, name)
        text = row.get(column, "")
        if not is_missing(text):
            setattr(job, name, text)
    seconds = None
    with suppress(DatasetError):  # a damaged time does not cost the job
        seconds = duration_s(row.get("elapsed", ""), "Elapsed")
    job.seconds = seconds if seconds is not None else job.seconds
