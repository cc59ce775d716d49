"""What a policy was worth: the figures of one simulated cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cluster.cluster import OOM_SHARE, Attempt, QueuedJob, simulate
from vramcast.core.units import GIB

_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one simulation. A share is of 1.

    Attributes:
        jobs, finished, refused: Refused are those which died on the whole of the largest card.
        ooms: Attempts which died.
        makespan_s: From 0 to the end of the last attempt.
        mean_wait_s: How much later than alone on an idle cluster a finished job was done.
        jobs_per_card: Mean number of jobs on a card, over the time in which it has one; a job of several counts on each.
        gpu_hours: Cards x time in which they have a job: what the cluster costs.
        wasted_gpu_hours: Of attempts which died, each weighted by the share of its card that it had requested.
        over_reserved_gib_hours: Requested above the peak, over the time of the attempts which finished.
        unused_share: The same as a share of all that was requested, deaths included.
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
    """Return the figures of what `simulate` returned for these jobs and cards; all 0 without jobs."""
    lived = [attempt for attempt in attempts if not attempt.died]
    busy_s = sum(_union_s([attempt for attempt in attempts if card in attempt.cards]) for card in range(len(cards)))
    late = [attempt.end_s - jobs[attempt.job].arrival_s - jobs[attempt.job].duration_s for attempt in lived]
    wait_s = sum(max(late_s, 0.0) for late_s in late)  # below 0 is rounding
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
    """Return the outcome of each policy: its name -> the ladder of each job. Args and errors: see `simulate`."""
    return {
        name: outcome(jobs, simulate(jobs, requests, cards, oom_share=oom_share, interference=interference), cards)
        for name, requests in policies.items()
    }


def _card_seconds(attempt: Attempt) -> float:
    return (attempt.end_s - attempt.start_s) * len(attempt.cards)


def _union_s(attempts: Sequence[Attempt]) -> float:
    """Return how long at least one of `attempts` ran."""
    total_s, until_s = 0.0, 0.0
    for attempt in sorted(attempts, key=lambda attempt: attempt.start_s):
        total_s += max(attempt.end_s - max(attempt.start_s, until_s), 0.0)
        until_s = max(until_s, attempt.end_s)
    return total_s
