"""Common parts of Slurm's two outputs: states, and a job assembled from its steps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from vramcast.datasets.histories import noted_peak
from vramcast.datasets.histories.noted_peak import NotedPeak
from vramcast.datasets.histories.reader import Tally, lines, near_capacity
from vramcast.datasets.histories.statuses import SLURM, WAITING, word_of
from vramcast.datasets.run import Measurement, Passport, Run, Workload

HOW: Final = "slurm gpumem"
NOTE: Final = (
    "gres/gpumem is sampled by Slurm (JobAcctGatherFrequency, not in this file) and summed over the cards of a task: "
    "workload.gpus is the number of cards of the job, if known"
)
HOST_OOM: Final = "OUT_OF_MEMORY"
HOST_OOM_NOTE: Final = (
    "Slurm's OUT_OF_MEMORY is about host memory: such runs count as killed and show nothing about the card's size; a "
    "job that exhausts its card is FAILED, and Slurm does not record why"
)
_JOB: Final = re.compile(r"(?P<job>\d+(?:_(?:\d+|\[[^\]|]*\]))?(?:\+\d+)?)(?:\.(?P<step>[A-Za-z0-9_+]+))?")


def split_id(text: str) -> tuple[str, str] | None:
    """Return the job and the step (empty for the job's own row) in `123_4.batch`; None if it is not a job's id."""
    match = _JOB.fullmatch(text.strip())
    return (match["job"], match["step"] or "") if match and len(text) < 64 else None


def state_of(text: str) -> str | None:
    """Return the state in `CANCELLED by 1001` or `COMPLETED`; None if it is not a state."""
    word = word_of(text)
    return word if word in SLURM or word in WAITING else None


def gpus_of(resources: str) -> tuple[int | None, str | None]:
    """Return the number and the kind of cards in `cpu=8,gres/gpu:a100=2,gres/gpu=2`."""
    found = re.findall(r"(?:^|,)gres/gpu(?::([A-Za-z0-9_.\-]+))?=(\d{1,6})(?=,|$)", resources)
    untyped = sum(int(count) for kind, count in found if not kind)
    typed = sum(int(count) for kind, count in found if kind)
    return (untyped or typed) or None, next((kind for kind, _ in found if kind), None)


def parsable_rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, str, list[str] | None, list[str]]]:
    """Yield (line, text, header in lowercase, cells) of `sacct -P` output; the header is None before the first one.

    Blank lines, comments and headers themselves are left out; a file may have several headers.

    Raises:
        DatasetError: The file cannot be read.
    """
    header: list[str] | None = None
    for number, text in lines(path):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        cells = [cell.strip() for cell in text.split("|")]
        names = [cell.lower() for cell in cells]
        if "jobid" in names or "jobidraw" in names:
            header = names
            continue
        yield number, text, header, cells


@dataclass(slots=True)
class SlurmJob:
    """One job, assembled from its rows."""

    id: str
    name: str | None = None
    user: str | None = None
    state: str | None = None
    gpus: int | None = None
    gpu: str | None = None
    host: str | None = None
    date: str | None = None
    seconds: float | None = None
    peaks: list[int] = field(default_factory=list)
    says_gpu: bool = False
    noted: NotedPeak | None = None

    def add_to(self, tally: Tally, rows: Sequence[tuple[object, object]], measured_by: str, *, is_told: bool = True) -> None:
        """Add the job to the content of a file; one without a GPU, or one that has not run, is skipped.

        Args:
            tally: Account of the file.
            rows: (place, text) of the rows that the job was assembled from.
            measured_by: Name of the program.
            is_told: Whether the file would show that the job had a GPU.
        """
        if self.state in WAITING:
            tally.skip("of jobs that have not run", len(rows))
        elif is_told and not self.says_gpu and self.gpus is None and not self.peaks and self.noted is None:
            tally.skip("of jobs without a GPU", len(rows))
        else:
            tally.run(rows, self._run, measured_by)

    def _run(self, measured_by: str) -> Run:
        status = SLURM.get(self.state or "", "unknown")
        messages = []
        if self.state == HOST_OOM:
            messages.append("out of the host's memory")
        if self.gpus is not None and self.gpus > 1 and self.peaks:
            messages.append(f"summed over the cards of a task, of {self.gpus} in the job")
        how, gpus, gpu, size_bytes, peak_bytes = HOW, self.gpus, self.gpu, None, max(self.peaks, default=None)
        if self.noted is not None:  # for one card, while gres/gpumem is a sum
            how, gpus, gpu = noted_peak.HOW, 1, self.noted.card or gpu
            peak_bytes, size_bytes = self.noted.peak_bytes, self.noted.capacity_bytes
            messages = [f"the fullest of {self.gpus} cards"] if self.gpus is not None and self.gpus > 1 else []
        return Run(
            id=f"sacct-{self.id}",
            workload=Workload(name=self.name or f"job {self.id}", user=self.user, gpus=gpus),
            passport=Passport(
                measured_by=measured_by, how=how, gpu=gpu, gpu_total_bytes=size_bytes, host=self.host, date=self.date
            ),
            measurement=Measurement(
                status=status,
                process_bytes=peak_bytes,
                censored=(self.state is not None and status != "ok") or near_capacity(peak_bytes, size_bytes),
                seconds=self.seconds,
                message="; ".join(messages),
            ),
        )
