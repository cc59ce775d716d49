"""Arrival times, run times, and card counts of jobs on a real cluster: from a job log, or from a published distribution.

    python -m benchmarks.cluster.arrivals FILE      summary of a file: jobs, jobs left out, quantiles of the run times

Formats, detected from the columns of the header (CSV, also gzipped):

- `num_gpu, creation_time, scheduled_time, deletion_time` (seconds): Alibaba's cluster-trace-gpu-v2023, from
  https://github.com/alibaba/clusterdata the files `cluster-trace-gpu-v2023/csv/openb_pod_list_*.csv`. A job is a pod with GPUs;
  it runs from `scheduled_time` to `deletion_time`. Pods that were never scheduled are left out, and so are pods that were
  still running at the end of the log, because their run time is unknown.
- `runtime` (seconds): only run times, as in Philly's `cluster-trace-gpu-v2020/analysis/philly_runtime.csv` there.
  They are drawn at random; arrivals are a Poisson process, and each job takes one card.
- `arrival_s, duration_s, cards`: any other cluster's log.

A log gives a window of consecutive jobs from a seeded start, so bursts stay together.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from benchmarks.tables import table as markdown
from vramcast.core.errors import DatasetError
from vramcast.datasets.histories.reader import Tally, lines, number, table, whole

LONGEST_S: Final = 24 * 3600.0  # arbitrary: the few longer jobs have most of the GPU hours; one of them would decide a makespan
LEVELS: Final = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)  # of the quantiles that represent a distribution


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of a log: arrival time, run time, and number of cards."""

    at_s: float
    duration_s: float
    cards: int = 1


class Arrivals(Protocol):
    """Source of a mix's jobs."""

    @property
    def source(self) -> str:
        """Name for a table's heading."""

    def draw(self, n_jobs: int, seed: int) -> list[Arrival]:
        """Return `n_jobs` jobs in order of arrival, from 0 s on; fewer if there are not as many."""


@dataclass(frozen=True, slots=True)
class Log:
    """Jobs of a log.

    Attributes:
        source: Name of the log.
        jobs: Jobs in order of arrival.
        left_out: Number of other jobs, by reason.
        left_out_share: Share of the GPU hours of all jobs with a known run time; jobs still running count up to the end of
            the log.
    """

    source: str
    jobs: tuple[Arrival, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    left_out_share: float = 0.0

    def draw(self, n_jobs: int, seed: int) -> list[Arrival]:
        """Return a window of the log; see `Arrivals`."""
        first = int(np.random.default_rng(seed).integers(max(len(self.jobs) - n_jobs, 0) + 1))
        chosen = self.jobs[first : first + n_jobs]
        return [replace(job, at_s=job.at_s - chosen[0].at_s) for job in chosen]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Run times by their quantiles, seconds at `LEVELS`, interpolated logarithmically. Arrivals are a Poisson process.

    For the other attributes see `Log`.
    """

    source: str
    quantiles_s: tuple[float, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    left_out_share: float = 0.0

    def draw(self, n_jobs: int, seed: int) -> list[Arrival]:
        """Return jobs with drawn run times and a mean gap of one second; see `Arrivals`."""
        random = np.random.default_rng(seed)
        times = np.cumsum(random.exponential(1.0, n_jobs))
        seconds = np.exp(np.interp(random.random(n_jobs), LEVELS, np.log(self.quantiles_s)))
        return [Arrival(at - float(times[0]), one) for at, one in zip(times.tolist(), seconds.tolist(), strict=True)]


# measured: `python -m benchmarks.cluster.arrivals philly_runtime.csv`, 83,154 run times less those above a day; the file is
# named above, its numbers come from https://github.com/msr-fiddle/philly-traces (CC BY 4.0; Jeon et al., USENIX ATC 2019)
PHILLY: Final = RunTimes("Philly's run times", (1.0, 47.0, 60.0, 112.0, 1070.0, 2738.0, 8686.0, 17173.0, 59385.0, 86399.0))


def scaled(jobs: Sequence[Arrival], n_cards: int, load: float) -> list[Arrival]:
    """Return the jobs with arrivals scaled until one job per card could do 1 / `load` of the work in the meantime."""
    span_s = max((job.at_s for job in jobs), default=0.0)
    factor = sum(job.duration_s * job.cards for job in jobs) / (n_cards * load * span_s) if span_s else 0.0
    return [replace(job, at_s=job.at_s * factor) for job in jobs]


# Files --------------------------------------------------------------------------------------------------------------

Row = Mapping[str, str]


def _pod(row: Row) -> Arrival:
    scheduled_s = number(row["scheduled_time"], "scheduled_time")
    if scheduled_s is None:
        raise _Skipped("never scheduled")
    duration_s = _known(row, "deletion_time") - scheduled_s
    return Arrival(_known(row, "creation_time"), duration_s, whole(row["num_gpu"], "num_gpu") or 0)


def _run_time(row: Row) -> Arrival:
    return Arrival(0.0, _known(row, "runtime"))


def _plain(row: Row) -> Arrival:
    return Arrival(_known(row, "arrival_s"), _known(row, "duration_s"), whole(row["cards"], "cards") or 0)


_FORMATS: Final[Mapping[tuple[str, ...], Callable[[Row], Arrival]]] = {
    ("num_gpu", "creation_time", "scheduled_time", "deletion_time"): _pod,
    ("runtime",): _run_time,
    ("arrival_s", "duration_s", "cards"): _plain,
}


class _Skipped(Exception):
    """A valid row without a known run time."""


def _known(row: Row, name: str) -> float:
    value = number(row[name], name)
    if value is None:
        raise DatasetError(f"{name} is missing.")
    return value


def read(path: str | os.PathLike[str], *, longest_s: float = LONGEST_S, most_cards: int = 8) -> Log | RunTimes:
    """Return the content of a file.

    Args:
        path: The file, in one of the formats above.
        longest_s: Jobs that ran longer are left out.
        most_cards: Jobs with more cards are left out.
    Raises:
        DatasetError: the file cannot be read, has no known format, or has no job.
    """
    columns = _columns(path)
    tally, left_out, found, lost_s = Tally(path), Counter[str](), list[Arrival](), 0.0
    end_s = _last(path, columns) if _FORMATS[columns] is _pod else None
    for _, row in table(path, columns, tally):
        try:
            job = _FORMATS[columns](row)
            is_open = end_s is not None and _known(row, "deletion_time") >= end_s
            if reason := _unfit(job, longest_s, most_cards) or ("still running at the end" if is_open else ""):
                left_out[reason] += 1
                lost_s += max(job.duration_s * job.cards, 0.0)
            else:
                found.append(job)
        except _Skipped as skipped:
            left_out[str(skipped)] += 1
        except DatasetError:
            left_out["damaged"] += 1
    left_out["damaged"] += tally.rows - len(found) - left_out.total()  # rows of another length
    reasons = {reason: n for reason, n in sorted(left_out.items()) if n}
    if not found:
        raise DatasetError(f"'{path}' has no job that can be simulated ({tally.rows} rows, left out: {reasons}).")
    share = lost_s / (lost_s + sum(job.duration_s * job.cards for job in found))
    if _FORMATS[columns] is _run_time:
        return RunTimes(Path(path).name, _quantiles(job.duration_s for job in found), reasons, share)
    return Log(Path(path).name, tuple(sorted(found, key=lambda job: job.at_s)), reasons, share)


def _columns(path: str | os.PathLike[str]) -> tuple[str, ...]:
    header = {name.strip() for name in next(lines(path), (0, ""))[1].split(",")}
    found = next((columns for columns in _FORMATS if header.issuperset(columns)), None)
    if found is None:
        raise DatasetError(f"'{path}' has the columns {sorted(header)[:20]}: those of one of {list(_FORMATS)} are expected.")
    return found


def _last(path: str | os.PathLike[str], columns: Sequence[str]) -> float | None:
    """Return the deletion time of the last pod, which is the end of the log."""
    found = []
    for _, row in table(path, columns, Tally(path)):
        try:
            found.append(number(row["deletion_time"], "deletion_time"))
        except DatasetError:
            continue
    return max((value for value in found if value is not None), default=None)


def _unfit(job: Arrival, longest_s: float, most_cards: int) -> str:
    """Return the reason why a job is left out, "" if it is not."""
    if job.cards == 0:
        return "without a GPU"
    if job.at_s < 0 or job.cards < 0:
        return "damaged"
    if job.duration_s <= 0:
        return "without a run time"
    if job.duration_s > longest_s:
        return f"longer than {longest_s / 3600:g} h"
    return f"of more than {most_cards} GPUs" if job.cards > most_cards else ""


def _quantiles(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.quantile(list(values), LEVELS))


def said(found: Log | RunTimes) -> str:
    """Return a summary of the jobs left out."""
    counts = ", ".join(f"{n} {reason}" for reason, n in found.left_out.items())
    return f"{counts}; {100 * found.left_out_share:.0f} % of the GPU hours" if counts else "none"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the content of a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file")
    found = read(parser.parse_args(arguments).file)
    quantiles = found.quantiles_s if isinstance(found, RunTimes) else _quantiles(job.duration_s for job in found.jobs)
    if isinstance(found, Log):
        print(f"{len(found.jobs)} jobs by number of cards: {dict(sorted(Counter(job.cards for job in found.jobs).items()))}")
    print(f"left out: {said(found)}\n")
    rows = [[f"{at:g}", f"{seconds:.0f}"] for at, seconds in zip(LEVELS, quantiles, strict=True)]
    print(markdown(["quantile", "run time s"], rows))


if __name__ == "__main__":
    main()
