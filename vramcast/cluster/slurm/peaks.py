"""Memory of each job on each card, sampled on its node: the largest sum of its processes so far, in one small file per job.

    {"cards": {"GPU-4f...": {"peak_bytes": 5056233472, "capacity_bytes": 15637086208, "name": "Tesla T4"}}, "samples": 120}

nvidia-smi lists each process with its memory; Slurm's cgroup identifies the process's job, or else the job variable in its
environment. A peak between two samples is missed, but torch's caching allocator keeps the memory it reserved, so that a
training job's process peak lasts.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from vramcast.cluster.slurm.programs import absolute
from vramcast.core.checks import decimal
from vramcast.core.errors import DatasetError, VramcastError
from vramcast.core.files import atomic_write
from vramcast.core.plain import from_plain, json_value, to_plain
from vramcast.core.units import MIB

_INTERVAL_S: Final = 1.0  # arbitrary: a job's first step takes longer
_SMI_S: Final = 10.0  # arbitrary: nvidia-smi takes about 0.1 s, but can hang on a failing node
_KEPT_S: Final = 7 * 86_400  # arbitrary: an epilog reads it within seconds
_CGROUP: Final = re.compile(r"/job_([0-9]+)(?:/|$)", re.MULTILINE)
_STARTED: Final = re.compile(rb"(?:^|\0)SLURM_JOB_ID=([0-9]+)(?:\0|$)")
_PROCESSES: Final = ("--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,noheader,nounits")
_CARDS: Final = ("--query-gpu=uuid,memory.total,name", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class CardPeak:
    """The peak of a job on one card; None and "" for facts of the card that nvidia-smi does not report."""

    peak_bytes: int
    capacity_bytes: int | None = None
    name: str = ""


@dataclass(slots=True)
class JobPeaks:
    """The peaks of one job.

    Attributes:
        cards: Peaks by the card's UUID.
        samples: Number of samples that saw the job.
    """

    cards: dict[str, CardPeak] = field(default_factory=dict)
    samples: int = 0


def sample_for_ever(folder: Path) -> None:
    """Sample until the process is stopped.

    Raises:
        OutputError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs: dict[str, JobPeaks] = {}
    cards = node_cards()
    while True:
        began = time.monotonic()
        take_sample(jobs, cards, folder, _job_of)
        time.sleep(max(0.0, _INTERVAL_S - (time.monotonic() - began)))


def take_sample(
    jobs: dict[str, JobPeaks], cards: Mapping[str, CardPeak], folder: Path, job_of: Callable[[int], str | None]
) -> None:
    """Take one sample: add it to `jobs`, and write the files of the jobs whose peak grew.

    Args:
        jobs: Peaks so far, by job id.
        cards: Cards of the node, by UUID.
        folder: Folder for the files.
        job_of: Returns the job of a process.
    """
    now: dict[tuple[str, str], int] = {}
    for card, pid, used_bytes in processes():
        job = job_of(pid)
        if job is not None:
            now[job, card] = now.get((job, card), 0) + used_bytes
    grown = set()
    for (job, card), used_bytes in now.items():
        peaks = jobs.setdefault(job, JobPeaks())
        seen_before = peaks.cards.get(card) or cards.get(card) or CardPeak(0)
        if used_bytes > seen_before.peak_bytes:
            peaks.cards[card] = replace(seen_before, peak_bytes=used_bytes)
            grown.add(job)
    seen = {job for job, _ in now}
    for job in seen:
        jobs[job].samples += 1
    for job in grown:
        with atomic_write(folder / f"{job}.json", raises=VramcastError) as file:
            file.write(json.dumps(to_plain(jobs[job])).encode())
    for job in set(jobs) - seen:
        if not (folder / f"{job}.json").exists():  # its epilog has read it
            del jobs[job]
    _forget_old(folder)


def read_peaks(folder: Path, job_id: str) -> list[CardPeak]:
    """Return a job's peak on each of its cards; empty if no sample saw it."""
    try:
        values = json_value((folder / f"{job_id}.json").read_bytes(), "peaks")
        return [*from_plain(JobPeaks, values).cards.values()]
    except (OSError, DatasetError):
        return []


def processes() -> Iterator[tuple[str, int, int]]:
    """Yield card, process and bytes for each process that holds memory, from nvidia-smi; nothing if it fails."""
    for cells in _smi(_PROCESSES):
        pid, used_mib = (decimal(cell) for cell in cells[1:]) if len(cells) == 3 else (None, None)
        if pid is not None and used_mib is not None:
            yield cells[0], pid, used_mib * MIB


def node_cards() -> dict[str, CardPeak]:
    """Return the node's cards by UUID, each with a peak of 0."""
    rows = [cells for cells in _smi(_CARDS) if len(cells) == 3]
    return {uuid: CardPeak(0, found * MIB if (found := decimal(size)) is not None else None, name) for uuid, size, name in rows}


def _smi(arguments: tuple[str, ...]) -> Iterator[list[str]]:
    try:
        done = subprocess.run([absolute("nvidia-smi"), *arguments], capture_output=True, text=True, timeout=_SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in done.stdout.splitlines():
        yield [cell.strip() for cell in line.split(",")]


def _job_of(pid: int) -> str | None:
    """Return the Slurm job of a process: from its cgroup, or without cgroups from its initial environment."""
    try:
        match = _CGROUP.search(Path(f"/proc/{pid}/cgroup").read_text())
        if match:
            return match[1]
        started = _STARTED.search(Path(f"/proc/{pid}/environ").read_bytes())
        return started[1].decode() if started else None
    except OSError:
        return None


def _forget_old(folder: Path) -> None:
    oldest = time.time() - _KEPT_S
    for path in folder.glob("*.json"):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except OSError:
            continue
