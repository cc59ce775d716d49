"""Results of a policy: the figures of one simulated cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cluster.cluster import OOM_SHARE, Attempt, QueuedJob, simulate
from vramcast.core.units import GIB

_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one simulation. Shares are in [0, 1].

    Attributes:
        jobs, finished, refused: Refused jobs died on the whole largest card.
        ooms: Attempts that died.
        makespan_s: Time from 0 to the end of the last attempt.
        mean_wait_s: Mean delay of a finished job relative to an idle cluster.
        jobs_per_card: Mean number of jobs on a card while it has one; a job with several cards counts on each.
        gpu_hours: Cards x time in which they have a job: the cost of the cluster.
        wasted_gpu_hours: GPU hours of attempts that died, each weighted by the share of its card that it had requested.
        over_reserved_gib_hours: Requested memory above the peak, over the time of the attempts that finished.
        unused_share: The same as a share of all requested memory, including deaths.
    """

    jobs: int
    finished: int
    refused: int
    ooms: int
    makespan_s: float
    mean_wait_s: float
    jobs_per_card: float
    gpu_hours: float
    wasted_gpu_hours: float
    over_reserved_gib_hours: float
    unused_share: float


def outcome(jobs: Sequence[QueuedJob], attempts: Sequence[Attempt], cards: Sequence[int]) -> Outcome:
    """Return the figures of a `simulate` result for these jobs and cards; all 0 without jobs."""
    lived = [attempt for attempt in attempts if not attempt.died]
    busy_s = sum(_union_s([attempt for attempt in attempts if card in attempt.cards]) for card in range(len(cards)))
    late = [attempt.end_s - jobs[attempt.job].arrival_s - jobs[attempt.job].duration_s for attempt in lived]
    wait_s = sum(max(late_s, 0.0) for late_s in late)  # negative values are rounding errors
    requested = sum(attempt.request_bytes * _card_seconds(attempt) for attempt in attempts)
    unused = sum((attempt.request_bytes - jobs[attempt.job].peak_bytes) * _card_seconds(attempt) for attempt in lived)
    wasted_s = sum(
        (attempt.end_s - attempt.start_s) * attempt.request_bytes / cards[card]
        for attempt in attempts
        if attempt.died
        for card in attempt.cards
    )
    return Outcome(
        jobs=len(jobs),
        finished=len(lived),
        refused=len(jobs) - len(lived),
        ooms=len(attempts) - len(lived),
        makespan_s=max((attempt.end_s for attempt in attempts), default=0.0),
        mean_wait_s=wait_s / len(lived) if lived else 0.0,
        jobs_per_card=sum(map(_card_seconds, attempts)) / busy_s if busy_s else 0.0,
        gpu_hours=busy_s / _HOUR_S,
        wasted_gpu_hours=wasted_s / _HOUR_S,
        over_reserved_gib_hours=unused / GIB / _HOUR_S,
        unused_share=unused / requested if requested else 0.0,
    )


def compare(
    jobs: Sequence[QueuedJob],
    policies: Mapping[str, Sequence[Sequence[int]]],
    cards: Sequence[int],
    *,
    oom_share: float = OOM_SHARE,
    interference: float = 0.0,
) -> dict[str, Outcome]:
    """Return the outcome of each policy: its name -> the ladder of each job. For args and errors, see `simulate`."""
    return {
        name: outcome(jobs, simulate(jobs, requests, cards, oom_share=oom_share, interference=interference), cards)
        for name, requests in policies.items()
    }


def _card_seconds(attempt: Attempt) -> float:
    return (attempt.end_s - attempt.start_s) * len(attempt.cards)


def _union_s(attempts: Sequence[Attempt]) -> float:
    """Return the time in which at least one of `attempts` ran."""
    total_s, until_s = 0.0, 0.0
    for attempt in sorted(attempts, key=lambda attempt: attempt.start_s):
        total_s += max(attempt.end_s - max(attempt.start_s, until_s), 0.0)
        until_s = max(until_s, attempt.end_s)
    return total_s
