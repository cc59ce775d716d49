"""Cost of request policies on the runs of a history: memory reserved while jobs ran, and jobs that ran out of it.

A job that runs out of its request runs again with the whole card: both runs count. Runs whose peak is a lower bound are
left out, because the sufficient request is unknown. So are those without a duration or a card; the number of each is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vramcast.core.units import GIB
from vramcast.learner.evaluation.scored_run import Scored

LEVELS: Final = (0.5, 0.9, 0.95, 0.99)  # spec: the quantiles of an estimate's JSON
_MARGIN: Final = 0.15  # arbitrary: a usual manual margin on top of an estimate
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one policy.

    Attributes:
        policy: Its name.
        deaths: Number of jobs whose request was too small.
        requested_gib_hours: GiB-hours of the first attempts.
        again_gib_hours: GiB-hours of the second attempts, with the whole card.
        unused_gib_hours: GiB-hours of the first attempts above the job's memory; a deficit counts as 0.
    """

    policy: str
    deaths: int
    requested_gib_hours: float
    again_gib_hours: float
    unused_gib_hours: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of `policies` on `runs` runs; the numbers of runs left out, by reason."""

    policies: list[Cost]
    runs: int
    used_gib_hours: float
    left_out: dict[str, int]


def costs(scored: Sequence[Scored], seconds: Mapping[str, float]) -> Costs:
    """Return the cost of each policy.

    Args:
        scored: Runs with bounds.
        seconds: Known durations by id.
    """
    judged: list[tuple[Scored, int, float]] = []
    left_out: dict[str, int] = {}
    for run in scored:
        if run.is_lower_bound:
            reason = "their peak is only a lower bound"
        elif not seconds.get(run.id):
            reason = "their duration is not known"
        elif run.card_bytes is None:
            reason = "their card is not known"
        else:
            judged.append((run, run.card_bytes, seconds[run.id] / _HOUR_S))
            continue
        left_out[reason] = left_out.get(reason, 0) + 1
    asked = {name: _cost(name, request, judged) for name, request in _policies(scored).items()}
    used = sum(run.measured_bytes * hours for run, _, hours in judged) / GIB
    return Costs(list(asked.values()), len(judged), used, left_out)


def _policies(scored: Sequence[Scored]) -> dict[str, Callable[[Scored], int | None]]:
    """Return each policy's request by name; None: the whole card."""
    known = {level for run in scored for level in run.bounds}
    found: dict[str, Callable[[Scored], int | None]] = {
        "the whole card": lambda run: None,
        "our estimate": lambda run: run.estimated_bytes,
        f"our estimate + {100 * _MARGIN:g} %": lambda run: round((1 + _MARGIN) * run.estimated_bytes),
    }
    for level in LEVELS:
        if level in known:
            found[f"our bound at {level:g}"] = lambda run, level=level: run.bounds.get(level)  # type: ignore[misc]
    return found


def dies(run: Scored, size_bytes: int) -> bool:
    """Return whether a job dies with this many bytes: decided by a second run, or else by its measured memory.

    The simulator's second round is not used: a simulation cannot evaluate itself.
    """
    survives = None if run.is_emulated else run.runs_in(size_bytes)
    return not survives if survives is not None else run.covered_by(size_bytes) is False


def _cost(name: str, request: Callable[[Scored], int | None], judged: Sequence[tuple[Scored, int, float]]) -> Cost:
    deaths, requested, again, unused = 0, 0.0, 0.0, 0.0
    for run, card_bytes, hours in judged:
        wanted = request(run)
        size_bytes = card_bytes if wanted is None else min(wanted, card_bytes)
        requested += size_bytes * hours
        unused += max(size_bytes - run.measured_bytes, 0) * hours
        if size_bytes < card_bytes and dies(run, size_bytes):
            deaths += 1
            again += card_bytes * hours
    return Cost(name, deaths, requested / GIB, again / GIB, unused / GIB)
