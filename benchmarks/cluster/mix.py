"""Seeded job mixes: measured or made-up runs assigned to arrivals; and made-up runs with bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np

from benchmarks.cluster.arrivals import Arrival
from benchmarks.cluster.cluster import QueuedJob
from vramcast.core.units import GIB
from vramcast.learner.conformal import Scores
from vramcast.learner.evaluation.scored_run import Scored

MEDIAN_DURATION_S: Final = 1800.0  # arbitrary: half an hour
DURATION_SPREAD: Final = 1.2  # arbitrary: standard deviation of the logarithm; a tenth of the jobs then run more than two hours
_T = TypeVar("_T")
LEVELS: Final = (0.5, 0.9, 0.95, 0.99)  # spec: the quantiles in the JSON of an estimate


@dataclass(frozen=True, slots=True)
class Mix:
    """Jobs and their runs: `jobs[i]` takes the measured peak of `runs[i]`; the rest of the run is an estimator's prediction."""

    jobs: tuple[QueuedJob, ...]
    runs: tuple[Scored, ...]


def deal(arrivals: Sequence[Arrival], runs: Sequence[Scored], *, seed: int = 0) -> Mix:
    """Return a job for each arrival, with the measured memory of a run and the errors of its prediction.

    Runs are drawn with replacement: a family, then one of its groups, then one of its runs, so that neither a large family nor
    a frequently measured model outweighs the others. Runs with only a lower bound as their measurement are left out. Without
    any other run there are no jobs.
    """
    known: dict[str, dict[str, list[Scored]]] = {}
    for run in runs:
        if not run.is_lower_bound:
            known.setdefault(run.family, {}).setdefault(run.group, []).append(run)
    if not known:
        return Mix((), ())
    random = np.random.default_rng(seed)

    def one_of(values: Iterable[_T]) -> _T:
        listed = list(values)
        return listed[int(random.integers(len(listed)))]

    drawn = [one_of(known[family][one_of(known[family])]) for family in (one_of(known) for _ in arrivals)]
    jobs = [
        QueuedJob(f"{number} {run.id}", one.at_s, one.duration_s, run.measured_bytes, one.cards)
        for number, (one, run) in enumerate(zip(arrivals, drawn, strict=True))
    ]
    return Mix(tuple(jobs), tuple(drawn))


def draw_mix(
    runs: Sequence[Scored],
    n_jobs: int,
    *,
    mean_gap_s: float,
    seed: int = 0,
    median_duration_s: float = MEDIAN_DURATION_S,
    duration_spread: float = DURATION_SPREAD,
) -> Mix:
    """Return `n_jobs` made-up arrivals with assigned `runs`.

    Arrivals are a Poisson process with a mean gap of `mean_gap_s`; 0 means all at once. Durations are lognormal.
    """
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1.0, n_jobs)) * mean_gap_s
    durations = median_duration_s * np.exp(duration_spread * random.standard_normal(n_jobs))
    arrivals = [Arrival(at_s, duration_s) for at_s, duration_s in zip(times.tolist(), durations.tolist(), strict=True)]
    return deal(arrivals, runs, seed=seed)


def synthetic_runs(
    n_groups: int = 240, runs_per_group: int = 4, *, seed: int = 0, largest_bytes: int = 36 * GIB
) -> list[Scored]:
    """Return made-up runs: lognormal peaks up to `largest_bytes`, and errors with a bias per model and a heavy tail.

    measured / estimated = exp(0.02 N + 0.012 t3): t3 is Student's t with 3 degrees of freedom; N is drawn once per model. The
    two scales are roughly those of first principles on public runs: a median error of 2 %, and one run in fifty beyond 10 %.
    """
    random = np.random.default_rng(seed)
    found = []
    for group in range(n_groups):
        bias = 0.02 * random.standard_normal()  # arbitrary, as the next two
        scale_bytes = 6 * GIB * math.exp(0.7 * random.standard_normal())
        for number in range(runs_per_group):
            measured = scale_bytes * math.exp(0.5 * random.standard_normal())
            ratio = math.exp(bias + 0.012 * random.standard_t(3))
            found.append(
                Scored(
                    id=f"model {group} run {number}",
                    group=f"model {group}",
                    family=("cnn", "transformer")[group % 2],
                    gpu="made up",
                    optimizer=("sgd", "adam", "adamw")[int(random.integers(3))],
                    measured_bytes=max(round(min(measured, largest_bytes)), 1),
                    estimated_bytes=max(round(min(measured, largest_bytes) / ratio), 1),
                    batch_size=int(2 ** random.integers(2, 9)),
                )
            )
    return found


def with_bounds(runs: Sequence[Scored], levels: Sequence[float] = LEVELS) -> list[Scored]:
    """Return the runs with bounds that are independent of runs of the same model.

    The bound at a level is estimate x r: r is the quantile of measured / estimate over the other models of the same family,
    each model with the same weight, by the rule of `vramcast.learner.conformal`. With too few models for a level, r is the
    largest ratio, which has lower coverage. A family with one model gets no bounds.
    """
    found = []
    for family in sorted({run.family for run in runs}):
        members = [run for run in runs if run.family == family]
        known = [(run.measured_bytes / run.estimated_bytes, run.group) for run in members if not run.is_lower_bound]
        ratios: dict[str, dict[float, float]] = {}
        for group in sorted({run.group for run in members}):
            others = [pair for pair in known if pair[1] != group]
            scores = Scores.of([ratio for ratio, _ in others], [name for _, name in others])
            ratios[group] = {level: min(scores.at(level), float(scores.values[-1])) for level in levels if others}
        for run in members:
            bounds = {level: max(round(run.estimated_bytes * ratio), 1) for level, ratio in ratios[run.group].items()}
            found.append(replace(run, bounds=bounds))
    return found
