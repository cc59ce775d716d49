"""A simulated cluster in which jobs share cards: placement and times of jobs, given each job's request in bytes.

Rules:
    - Jobs wait in the order of arrival; a job that fits starts on the first card with room. Later jobs pass one that does
      not fit (backfilling without reservations).
    - Jobs share a card while the sum of their requests is at most its size. The request is a cap: no job takes more.
    - A job with several cards starts when as many have room at once, requests and takes the same on each, and dies on all.
    - A job whose true peak exceeds its request dies after a share of its duration, goes to the end of the queue, and
      requests the next size of its ladder; the last is the whole largest card. A job that dies there is refused.
    - With k jobs on a card, each runs 1 + interference x (k - 1) times as long; 0: no interference, 1: the jobs take
      turns. A job with several cards runs as on the fullest of them.

Nothing here is random: equal arguments give equal attempts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from vramcast.core.errors import UsageError

OOM_SHARE: Final = 0.1  # arbitrary: most jobs reach their peak in the first steps, some in a late evaluation


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as the simulated cluster sees it.

    Attributes:
        id: Any name.
        arrival_s: Time of submission, from 0.
        duration_s: Run time on a card of its own.
        peak_bytes: Memory on each card, unknown to the scheduler beforehand.
        cards: Number of cards that it takes at once.
    """

    id: str
    arrival_s: float
    duration_s: float
    peak_bytes: int
    cards: int = 1

    def __post_init__(self) -> None:
        times = self.arrival_s >= 0 and 0 < self.duration_s < math.inf and self.arrival_s < math.inf
        if not (times and self.peak_bytes > 0 and self.cards > 0):
            raise UsageError(
                f"Job '{self.id}' arrives at {self.arrival_s} s, runs {self.duration_s} s and takes {self.peak_bytes} bytes of "
                f"{self.cards} cards: 0 or later, and above 0, are expected, all finite."
            )


@dataclass(frozen=True, slots=True)
class Attempt:
    """A job on its cards: `job` and `cards` are indices, `request_bytes` the cap on each, `died` true if it hit the cap."""

    job: int
    cards: tuple[int, ...]
    start_s: float
    end_s: float
    request_bytes: int
    died: bool


@dataclass(slots=True)
class _Running:
    job: int
    rung: int
    request_bytes: int
    cards: tuple[int, ...]
    start_s: float
    end_s: float
    slowness: float = 1.0  # factor of the run time relative to running alone


def simulate(
    jobs: Sequence[QueuedJob],
    requests: Sequence[Sequence[int]],
    cards: Sequence[int],
    *,
    oom_share: float = OOM_SHARE,
    interference: float = 0.0,
) -> list[Attempt]:
    """Return every attempt in the order of their ends.

    Args:
        jobs: Jobs in any order.
        requests: Ladder of each job in bytes: its first request, the one after one death, after two, ... Sizes not above
            the one before are left out, and the whole largest card is added. An empty ladder means the whole card.
        cards: Size of each card in bytes, in the order in which they are tried.
        oom_share: Share of a job's duration after which it dies, in (0, 1].
        interference: Slowdown for each neighbour, as a share.
    Raises:
        UsageError: no card, a job with more cards than there are of the largest size, a size or share out of range, or a
            number of ladders that differs from the number of jobs.
    """
    _check(jobs, requests, cards, oom_share, interference)
    largest = max(cards)
    ladders = [_ladder(sizes, largest) for sizes in requests]
    arrivals = deque(sorted(range(len(jobs)), key=lambda job: (jobs[job].arrival_s, job)))
    waiting: list[tuple[int, int]] = []  # job, rung
    running: list[_Running] = []
    free = list(cards)
    crowds = [0] * len(cards)
    attempts: list[Attempt] = []
    now, most_free = 0.0, largest

    def crowds_changed() -> None:
        """Update the remaining time of each job after a change in the number of jobs on its cards."""
        for one in running if interference else ():
            slowness = 1 + interference * (max(crowds[card] for card in one.cards) - 1)
            if slowness != one.slowness:
                one.end_s = now + (one.end_s - now) * slowness / one.slowness
                one.slowness = slowness

    def start(job: int, rung: int) -> bool:
        nonlocal most_free
        request_bytes, wanted = ladders[job][rung], jobs[job].cards
        if request_bytes > most_free:  # the usual case for most of a queue
            return False
        found = tuple(islice((card for card, left in enumerate(free) if left >= request_bytes), wanted))
        if len(found) < wanted:
            return False
        work_s = jobs[job].duration_s * (oom_share if jobs[job].peak_bytes > request_bytes else 1.0)
        for card in found:
            free[card] -= request_bytes
            crowds[card] += 1
        most_free = max(free)
        running.append(_Running(job, rung, request_bytes, found, now, now + work_s))
        crowds_changed()
        return True

    def end(one: _Running) -> None:
        nonlocal most_free
        running.remove(one)
        for card in one.cards:
            free[card] += one.request_bytes
            crowds[card] -= 1
        most_free = max(free)
        crowds_changed()
        died = jobs[one.job].peak_bytes > one.request_bytes
        attempts.append(Attempt(one.job, one.cards, one.start_s, now, one.request_bytes, died))
        if died and one.rung + 1 < len(ladders[one.job]):
            waiting.append((one.job, one.rung + 1))

    while arrivals or running:
        ends = min((one.end_s for one in running), default=math.inf)
        now = min(ends, jobs[arrivals[0]].arrival_s if arrivals else math.inf)
        for one in [one for one in running if one.end_s <= now]:
            end(one)
        while arrivals and jobs[arrivals[0]].arrival_s <= now:
            waiting.append((arrivals.popleft(), 0))
        waiting = [entry for entry in waiting if not start(*entry)]
    return attempts


def _ladder(sizes: Sequence[int], largest: int) -> list[int]:
    """Return the sizes above all before them, up to the largest card, which is the last."""
    ladder: list[int] = []
    for size_bytes in (*sizes, largest):
        if not ladder or size_bytes > ladder[-1]:
            ladder.append(min(size_bytes, largest))
        if ladder[-1] == largest:
            break
    return ladder


def _check(
    jobs: Sequence[QueuedJob], requests: Sequence[Sequence[int]], cards: Sequence[int], oom_share: float, interference: float
) -> None:
    if not cards or min(cards) <= 0:
        raise UsageError(f"The cluster's cards are {list(cards)}: at least one is expected, each with more than 0 bytes.")
    n_largest = list(cards).count(max(cards))
    if wide := [job for job in jobs if job.cards > n_largest]:
        raise UsageError(
            f"Job '{wide[0].id}' takes {wide[0].cards} cards, there are {n_largest} of the largest size: leave it out."
        )
    if len(jobs) != len(requests):
        raise UsageError(f"There are {len(jobs)} jobs and {len(requests)} requests: one ladder per job is expected.")
    if any(size <= 0 for sizes in requests for size in sizes):
        raise UsageError("A job requests 0 bytes or less: leave its ladder empty, it gets the whole card.")
    if not 0 < oom_share <= 1 or not 0 <= interference < math.inf:
        raise UsageError(f"oom_share is {oom_share} and interference {interference}: (0, 1] and 0 or more are expected.")
