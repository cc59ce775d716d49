"""Series of a card's used memory: nvidia-smi and NVML as CSV, the DCGM exporter as CSV or Prometheus text.

    timestamp, index, memory.used [MiB], memory.total [MiB]        nvidia-smi --query-gpu=... --format=csv -l 1
    timestamp,gpu_index,memory_used_MiB,memory_free_MiB,...         MIT Supercloud, one file per job
    DCGM_FI_DEV_FB_USED{gpu="0",Hostname="n1",hpc_job="7"} 1234     samples of the DCGM exporter, MiB

There is one run for each job and card, with the largest sample and the actual time between samples. If no column names a
job, the file's name does. A sample is the card's used memory, by all its processes.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, pairwise
from typing import Final

from vramcast.core.errors import DatasetError
from vramcast.core.units import GIB, KIB, MIB
from vramcast.datasets.histories.reader import Tally, by_column, csv_rows, is_missing, lines, near_capacity, number, size_bytes
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Measurement, Passport, Run, Workload

# Names of a column, in lowercase and without its unit, by content.
_COLUMNS: Final = {
    "time": ("timestamp", "time", "datetime", "ts"),
    "job": ("job", "job_id", "jobid", "id_job", "hpc_job", "slurm_job_id", "slurm_jobid", "pid"),
    "gpu": ("index", "gpu", "gpu_index", "gpu_id", "uuid", "gpu_uuid", "device"),
    "host": ("hostname", "host", "node", "instance"),
    "name": ("name", "gpu_name", "modelname"),
    "used": ("memory.used", "memory_used", "used_gpu_memory", "used_memory", "dcgm_fi_dev_fb_used", "fb_used", "fbusd"),
    "total": ("memory.total", "memory_total", "dcgm_fi_dev_fb_total", "fb_total"),
    "free": ("memory.free", "memory_free", "dcgm_fi_dev_fb_free", "fb_free"),
}
_UNITS: Final = {"mib": MIB, "mb": MIB, "gib": GIB, "gb": GIB, "kib": KIB, "bytes": 1, "b": 1}
_DCGM: Final = {"DCGM_FI_DEV_FB_USED": "used", "DCGM_FI_DEV_FB_FREE": "free", "DCGM_FI_DEV_FB_RESERVED": "held"}
_SAMPLE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d{1,16}))?\s*")
_LABEL: Final = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_DATES: Final = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S")  # spec: nvidia-smi's timestamps
_MILLISECONDS: Final = 1e11  # arbitrary: a larger Unix time is in ms; in s it would be the year 5138
_MICROSECONDS: Final = 1e14  # arbitrary: likewise


@dataclass(slots=True)
class _Card:
    """The samples of one job on one card."""

    job: str
    gpu: str
    host: str | None
    name: str | None = None
    total_bytes: int | None = None
    peak_bytes: int = 0
    times: list[float] = field(default_factory=list)
    rows: list[tuple[object, object]] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)


def read(path: str | os.PathLike[str]) -> JournalContent:
    """Return one run for each job and card.

    Raises:
        DatasetError: The file cannot be read, or has neither a column of used memory nor a DCGM sample.
    """
    tally = Tally(path)
    said = ((place, text) for place, text in lines(path) if text.strip() and not text.lstrip().startswith("#"))
    begin = next(said, (0, ""))
    first, numbered = begin[1], chain([begin], said)
    is_prometheus = _is_sample(first)
    cards: dict[tuple[str, ...], _Card] = {}
    how = _prometheus(numbered, tally, cards) if is_prometheus else _csv(first, numbered, tally, cards)
    for card in cards.values():
        tally.run(card.rows, _run, card, how)
    tally.note("samples cover the whole card, including other jobs on it")
    return tally.done()


def is_series(first: str) -> bool:
    """Return whether a file holds samples, given its first line that is neither a comment nor blank."""
    names = [_column(name) for name in first.split(",")]
    if _is_sample(first):
        return first.startswith("DCGM_")
    return any(name in names for name in _COLUMNS["used"])


def _is_sample(line: str) -> bool:
    return "," not in line.partition("{")[0] and _SAMPLE.fullmatch(line.strip()) is not None


def _csv(first: str, numbered: Iterator[tuple[int, str]], tally: Tally, cards: dict[tuple[str, ...], _Card]) -> str:
    table = csv_rows(numbered)
    _, header = next(table, (0, []))
    names = [_column(name) for name in header]
    at = {what: next((names.index(alias) for alias in known if alias in names), None) for what, known in _COLUMNS.items()}
    if at["used"] is None:
        raise DatasetError(
            f"'{tally.path}' begins with {first[:60]!r}, but must have a header with a column memory.used, memory_used_MiB "
            "or DCGM_FI_DEV_FB_USED."
        )
    unit = {what: _unit(header[place]) for what, place in at.items() if place is not None}
    for place, cells in by_column(table, range(len(names)), tally):
        text = ",".join(cells.values())
        values = {what: "" if i is None else cells[i].strip() for what, i in at.items()}
        if is_missing(values["used"]):
            tally.skip("without a value")
            continue
        with tally.guarded(place, text):
            used = size_bytes(values["used"], "used memory", unit["used"]) or 0
            total = size_bytes(values["total"], "the card's memory", unit.get("total", MIB))
            free = size_bytes(values["free"], "free memory", unit.get("free", MIB))
            time = _time(values["time"])
            card = _card(tally, cards, values["job"], values["gpu"], values["host"])
            card.name = card.name or values["name"] or None
            card.total_bytes = max(card.total_bytes or 0, total or (used + free if free else 0)) or None
            _add(card, (place, text), used, time)
    return "nvidia-smi device" if "dcgm_fi_dev_fb_used" not in names else "dcgm device"


def _prometheus(numbered: Iterator[tuple[int, str]], tally: Tally, cards: dict[tuple[str, ...], _Card]) -> str:
    for place, text in numbered:
        tally.rows += 1
        match = _SAMPLE.fullmatch(text.strip())
        if match is None:
            tally.reject(place, 'not a Prometheus sample: name{label="value"} number', text)
            continue
        if match[1] not in _DCGM:
            tally.skip("of other metrics")
            continue
        labels = {name.lower(): value for name, value in _LABEL.findall(match[2] or "")}
        with tally.guarded(place, text):
            value = number(match[3], match[1])
            if value is not None and not 0 <= value < 2**40:
                raise DatasetError(
                    f"{match[1]} is {match[3][:40]}, but must be a number of MiB.", kind=f"{match[1]} is not a number of MiB"
                )
            time = None if match[4] is None else int(match[4]) / 1000
            if value is None:
                tally.skip("without a value")
                continue
            pod = labels.get("pod", "")
            job = labels.get("hpc_job") or (f"{labels.get('namespace', '')}/{pod}" if pod else "")
            card = _card(tally, cards, job, labels.get("gpu") or labels.get("uuid", ""), labels.get("hostname", ""))
            card.name = card.name or labels.get("modelname")
            card.last[_DCGM[match[1]]] = round(value * MIB)
            if {"used", "free"} <= card.last.keys():
                card.total_bytes = sum(card.last.values()) or None
            if _DCGM[match[1]] == "used":
                _add(card, (place, text), round(value * MIB), time)
            else:
                card.rows.append((place, text))
    return "dcgm device"


def _column(name: str) -> str:
    """Return a column's name without its unit: `memory.used [MiB]` and `memory_used_MiB` lose it."""
    return re.sub(r"(?:\s*\[.*\]|_(?:mib|mb|gib|gb|bytes))$", "", name.strip().lower())


def _unit(name: str) -> int:
    """Return the bytes of a column's unit; MiB without a unit, as in NVML's tools."""
    match = re.search(r"(?:\[|_)(mib|mb|gib|gb|kib|bytes|b)\]?$", name.strip().lower())
    return _UNITS[match[1]] if match else MIB


def _card(tally: Tally, cards: dict[tuple[str, ...], _Card], job: str, gpu: str, host: str) -> _Card:
    """Return the card of a row; if no column names the job, the file does."""
    job = tally.path.name.split(".")[0] if is_missing(job) else job
    return cards.setdefault((job, host, gpu or "0"), _Card(job, gpu or "0", host or None))


def _add(card: _Card, row: tuple[object, object], used_bytes: int, time: float | None) -> None:
    card.rows.append(row)
    card.peak_bytes = max(card.peak_bytes, used_bytes)
    card.times += [] if time is None else [time]


def _time(text: str) -> float | None:
    """Return a time in seconds.

    Raises:
        DatasetError: It has none of the known forms.
    """
    if is_missing(text):
        return None
    if re.fullmatch(r"\d{1,20}(?:\.\d{1,20})?", text):
        value = float(text)
        return value / (1e6 if value > _MICROSECONDS else 1e3 if value > _MILLISECONDS else 1)
    for form in _DATES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except (ValueError, OverflowError):
            continue
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise DatasetError(
            f"the time is {text[:40]!r}, but must be of the form 2026/01/31 12:00:00.000, ISO 8601 or Unix time.",
            kind="the time has an unknown form",
        ) from None


def _run(card: _Card, how: str) -> Run:
    times = sorted(card.times)
    gaps = [after - before for before, after in pairwise(times) if after > before]
    peak = card.peak_bytes or None
    samples = len(card.rows) if not card.last else len(times) or None
    return Run(
        id="-".join(filter(None, ("series", card.job, card.host, card.gpu))),
        workload=Workload(name=f"job {card.job}", gpus=1),
        passport=Passport(
            measured_by=how.split(" ")[0],
            how=how,
            period_ms=1000 * statistics.median(gaps) if gaps else None,
            gpu=card.name,
            gpu_total_bytes=card.total_bytes,
            host=card.host,
        ),
        measurement=Measurement(
            status="unknown",
            process_bytes=peak,
            device_bytes=peak,
            censored=near_capacity(peak, card.total_bytes),
            samples=samples,
            seconds=times[-1] - times[0] if len(times) > 1 else None,
            message="" if peak else "every sample is 0",
        ),
    )
