"""`sacct --json`: jobs from Slurm's data parser; its versions differ in numbers, states and step ids.

    {"jobs": [{"job_id", "name", "user", "state": {"current"}, "time": {"elapsed", "end"}, "nodes", "tres": {"allocated"},
               "steps": [{"step": {"id", "name"}, "tres": {"requested": {"max": [{"type", "name", "count"}]}}}]}]}

`requested.max` is TRESUsageInMax of the text output; its counts are read as bytes.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any, Final

from vramcast.core.errors import DatasetError
from vramcast.core.plain import json_value
from vramcast.datasets.histories.reader import Tally, whole_text
from vramcast.datasets.histories.slurm import HOST_OOM, HOST_OOM_NOTE, NOTE, SlurmJob, state_of
from vramcast.datasets.journal import JournalContent

_UNSET: Final = 2**63  # spec: slurm.h, INFINITE64 and NO_VAL64 are above it


def read(path: str | os.PathLike[str]) -> JournalContent:
    """Return one run per job.

    Raises:
        DatasetError: The file cannot be read, or is not an output of sacct --json.
    """
    values = json_value(whole_text(path), f"'{path}'")
    jobs = values.get("jobs") if isinstance(values, dict) else values
    if not isinstance(jobs, list):
        raise DatasetError(f"'{path}' has no list 'jobs': write it with sacct --json.")
    tally = Tally(path)
    for place, job in enumerate(jobs):
        tally.rows += 1
        with tally.guarded(f"jobs[{place}]", job):
            found = _job(job)
            found.add_to(tally, [(f"jobs[{place}]", job)], "sacct --json")
            if found.state == HOST_OOM:
                tally.note(HOST_OOM_NOTE)
    tally.note(NOTE)
    return tally.done()


def _job(job: Any) -> SlurmJob:
    identity = _number(_at(job, "job_id"))
    if identity is None or identity < 0:
        raise DatasetError("The entry has no job_id, which each entry of sacct's list 'jobs' has.")
    task, array = _number(_at(job, "array", "task_id")), _number(_at(job, "array", "job_id"))
    found = SlurmJob(f"{array}_{task}" if task is not None and array else str(identity))
    found.name, found.user = _text(_at(job, "name")), _text(_at(job, "user")) or _text(_at(job, "association", "user"))
    found.host = _text(_at(job, "nodes"))
    found.state = _state(_at(job, "state"))
    elapsed, end = _number(_at(job, "time", "elapsed")), _number(_at(job, "time", "end"))
    found.seconds = float(elapsed) if elapsed is not None and elapsed >= 0 else None
    found.date = _date(end)
    for name, count in _resources(_at(job, "tres", "allocated")):
        if name == "gpu" or (name.startswith("gpu:") and found.gpus is None):
            found.gpus = count or found.gpus
        if name.startswith("gpu:"):
            found.gpu = found.gpu or name[4:]
    for step in _list(_at(job, "steps")):
        if _is_extern(_at(step, "step")):
            continue
        for name, count in _resources(_at(step, "tres", "requested", "max")):
            if name.partition(":")[0] == "gpumem":
                found.says_gpu = True
                found.peaks += [count] if count else []
    return found


def _is_extern(step: Any) -> bool:
    """Return whether a step is Slurm's own; ids are `123.extern`, or an object with it."""
    identity = _at(step, "id", "step_id") or _at(step, "id")
    return "extern" in (_at(step, "name"), identity) or str(identity).endswith(".extern")


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> int | None:
    """Return a number, also as {"set", "infinite", "number"}; None if it is unset.

    Raises:
        DatasetError: It is negative, or above the range of all sentinels of its type.
    """
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return None
        value = value.get("number")
    if isinstance(value, str) and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_UNSET < value < _UNSET:
        return None
    return int(value)


def _resources(value: Any) -> list[tuple[str, int]]:
    """Return (name, count) of the generic resources in a list of TRES; a name may be in the type."""
    found = []
    for entry in _list(value):
        kind, name, count = _at(entry, "type"), _text(_at(entry, "name")) or "", _number(_at(entry, "count"))
        if kind == "gres" or (isinstance(kind, str) and kind.startswith("gres/")):
            found.append((name or kind.partition("/")[2], max(count or 0, 0)))
    return found


def _state(value: Any) -> str | None:
    current = _at(value, "current") if isinstance(value, dict) else value
    words = current if isinstance(current, list) else [current]
    return next((state for word in words if isinstance(word, str) and (state := state_of(word))), None)


def _date(seconds: int | None) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None
    except (OverflowError, OSError, ValueError):
        return None
