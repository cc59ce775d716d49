"""AutoSwap: a plan to copy idle blocks to the host and back, so that a step takes less card memory.

    plan(trace)                       the least peak of live bytes without any waiting operator
    plan(trace, limit_bytes=...)      the extra time of a step with live bytes below a limit

Training is periodic: one step is planned, and every step follows the plan. Blocks are chosen by a weighted sum of four
scores, higher is better; optuna searches the weights, starting from the four unit vectors, as arXiv 1903.06631 does with a
Gaussian process. The peak is live bytes, not the bytes that an allocator reserves for them.

    DOA    duration of absence    time between the two accesses, less the time of both copies
    AOA    area of absence        DOA x bytes; DOA / bytes where DOA is negative
    WDOA   weighted               sum of the load over the operators of the absence
    SWDOA  submodular             WDOA of the best block; its bytes are taken off the load, and so on with the rest

Inferred from the paper's code, which differs from the paper in places: the sums run over operators, not over time; the
score SWDOA of a block is its WDOA at its turn.

Limits: each block goes out once per step, across the peak; blocks that no operator touches stay. Copies take no bandwidth
from the card's own memory, and the host always keeps up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.core.extras import needed
from vramcast.core.plain import to_plain
from vramcast.plans.swap_schedule import Link, Schedule, Scheduler, find_link
from vramcast.plans.swap_timeline import Candidates, Int64s, SwapTimeline
from vramcast.tracer.format.trace import Trace, step_number

Floats = npt.NDArray[np.float64]
NAMES: Final = ("DOA", "AOA", "WDOA", "SWDOA")
_TRIALS: Final = 20  # spec: arXiv 1903.06631's code, steps of Bayesian optimization after the unit vectors


@brief
@dataclass(frozen=True, slots=True)
class Move:
    """The copies of a block to the host and back. Times in microseconds since the step began, waits included.

    The copy out may begin before 0, in the step before, and the copy in may end in the step after.

    Attributes:
        block: Row of its ALLOC.
        size_bytes: Rounded to 512.
    """

    block: int
    size_bytes: int
    out_start_us: int
    out_end_us: int
    in_start_us: int
    in_end_us: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A delay: the operator whose first READ or WRITE row is `row` begins `wait_us` later than it could."""

    row: int
    wait_us: int


@brief
@dataclass(frozen=True, slots=True)
class SwapPlan:
    """The blocks to swap, and the resulting peak and overhead.

    Attributes:
        limit_bytes: The requested limit; None: the lowest without waiting.
        peak_bytes: Most live bytes with swapping; if not `feasible`, the minimum over all plans of this kind.
        feasible: Whether the limit can be kept; `schedule` is empty if it cannot.
        moved_bytes: Copied out in one step, and as many in.
        overhead_ms: Extra time of a step; None if not feasible.
        schedule: By the begin of the copy out.
        waits: Where operators wait, by row.
        link: The link that carries the copies.
        time_source: Source of operator times: `roofline DEVICE`, or `recorded` for the trace's own clock.
        step: The planned step, counted from 1.
        step_ms: Its duration without swapping.
        peak_live_bytes: Its peak without swapping.
    """

    limit_bytes: int | None
    peak_bytes: int
    feasible: bool
    moved_bytes: int
    overhead_ms: float | None
    schedule: tuple[Move, ...]
    waits: tuple[Wait, ...]
    link: Link
    time_source: str
    step: int
    step_ms: float
    peak_live_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON; unknown values are None, bytes and microseconds are integers."""
        fields = to_plain(self)
        return {
            "limit": fields.pop("limit_bytes"),
            "peak": fields.pop("peak_bytes"),
            "peak_live": fields.pop("peak_live_bytes"),
            **fields,
            "link": self.link.name,
        }


def plan(
    trace: Trace,
    *,
    limit_bytes: int | None = None,
    link: str | Link = "pcie4",
    among: Collection[int] | None = None,
    seed: int = 0,
) -> SwapPlan:
    """Return the plan with the least overhead found that keeps live bytes at `limit_bytes` or below.

    Args:
        trace: With READ and WRITE rows, as from `RunOptions(accesses=True)`.
        limit_bytes: Limit of live bytes at any instant; None: the lowest without a waiting operator.
        link: A name in `LINKS`, or a link of your own.
        among: ALLOC rows of the blocks that may move; None: all.
        seed: Seed of the search for weights; the same seed gives the same plan.
    Raises:
        UsageError: The trace has no accesses, the limit is not positive, or optuna is missing.
    """
    if limit_bytes is not None and limit_bytes <= 0:
        raise UsageError(f"The limit is {limit_bytes} bytes: give the bytes that live tensors may take, for example 8GiB.")
    planner = _Planner(trace, find_link(link), seed, among)
    return planner.least_peak() if limit_bytes is None else planner.within(limit_bytes)


def peaks_by_score(trace: Trace, *, link: str | Link = "pcie4") -> dict[str, int]:
    """Return the lowest peak without a waiting operator for each of `NAMES`, if that score alone orders the blocks."""
    planner = _Planner(trace, find_link(link), seed=0, among=None)
    orders = zip(NAMES, np.argsort(-planner.scores, axis=0, kind="stable").T, strict=True)
    return {name: planner.lowest(order, 0).peak_bytes for name, order in orders}


def scores(timeline: SwapTimeline, candidates: Candidates, link: Link) -> Floats:
    """Return the standardized scores, float64 [candidates, 4] in the order of `NAMES`: mean 0 and deviation 1, or all 0."""
    raw = raw_scores(timeline, candidates, link)
    if not len(raw):
        return raw
    deviation = raw.std(axis=0)
    return np.asarray((raw - raw.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0))


def raw_scores(timeline: SwapTimeline, candidates: Candidates, link: Link) -> Floats:
    """Return the scores as defined, float64 [candidates, 4]: microseconds, microseconds x bytes, bytes, bytes."""
    sizes = candidates.size_bytes
    if not len(candidates):
        return np.zeros((0, len(NAMES)))
    durations = np.roll(timeline.duration_us, -timeline.peak)
    load = np.roll(timeline.load_bytes, -timeline.peak)
    ends = np.cumsum(durations)
    # From the end of the last access, around the circle, to the begin of the next: behind `ready`, and before `needed`.
    gap = ends[-1] - ends[candidates.ready] + ends[candidates.needed - 1]
    copies = np.array([link.out_us(size) + link.in_us(size) for size in sizes.tolist()])
    doa = (gap - copies).astype(np.float64)
    aoa = np.where(doa >= 0, doa * sizes, doa / sizes)
    return np.stack([doa, aoa, _weighted(load, candidates), _submodular(load, candidates)], axis=1)


def _weighted(load: npt.NDArray[np.int64], candidates: Candidates) -> Floats:
    """Return the sum of `load` over the operators of each absence: before `needed`, and behind `ready`."""
    sums = np.append(0, np.cumsum(load))
    return np.asarray(sums[candidates.needed] + sums[-1] - sums[candidates.ready + 1], np.float64)


def _submodular(load: npt.NDArray[np.int64], candidates: Candidates) -> Floats:
    load = load.copy()
    found = np.zeros(len(candidates))
    left = np.ones(len(candidates), np.bool_)
    while left.any():
        now = np.where(left, _weighted(load, candidates), -np.inf)
        best = int(np.argmax(now))
        found[best], left[best] = now[best], False
        load[: candidates.needed[best]] -= candidates.size_bytes[best]
        load[candidates.ready[best] + 1 :] -= candidates.size_bytes[best]
    return found


class _Planner:
    def __init__(self, trace: Trace, link: Link, seed: int, among: Collection[int] | None) -> None:
        self.timeline = SwapTimeline.of(trace)
        self.candidates = Candidates.of(self.timeline, among=among)
        self.link = link
        self.seed = seed
        self.scheduler = Scheduler(self.timeline, self.candidates, link)
        self.scores = scores(self.timeline, self.candidates, link)
        self.nothing = self.scheduler.without_waiting(np.zeros(0, np.int64))

    def least_peak(self) -> SwapPlan:
        best = self._search(lambda order: self.lowest(order, 0), lambda found: found.peak_bytes)
        return self._plan(None, self._pruned(best, best.peak_bytes))

    def within(self, limit_bytes: int) -> SwapPlan:
        assert self.nothing is not None
        if self.nothing.peak_bytes <= limit_bytes:
            return self._plan(limit_bytes, self.nothing)
        everything = np.arange(len(self.candidates))
        least_bytes = int(self.scheduler.least_load(everything).max())
        if least_bytes > limit_bytes:
            return self._plan(limit_bytes, None, least_bytes)
        best = self._search(lambda order: self._kept_to(order, limit_bytes), lambda found: found.overhead_us)
        return self._plan(limit_bytes, best)

    def lowest(self, order: Int64s, target_bytes: int) -> Schedule:
        """Return the schedule of those candidates, taken in `order`, that lower the peak; enough of them for the target."""
        assert self.nothing is not None
        best = self.nothing
        for candidate in order:
            if best.peak_bytes <= target_bytes:
                break
            found = self.scheduler.without_waiting(np.append(best.chosen, candidate))
            if found is not None and found.peak_bytes <= best.peak_bytes:
                best = found
        return best

    def _pruned(self, best: Schedule, limit_bytes: int) -> Schedule:
        """Return `best` without the moves that `limit_bytes` does not require, smallest first."""
        for candidate in best.chosen[np.argsort(self.candidates.size_bytes[best.chosen], kind="stable")]:
            found = self.scheduler.without_waiting(best.chosen[best.chosen != candidate])
            if found is not None and found.peak_bytes <= limit_bytes:
                best = found
        return best

    def _kept_to(self, order: Int64s, limit_bytes: int) -> Schedule:
        """Return the better of two: no waiting if that reaches the limit, otherwise the first candidates that can reach it."""
        free = self.lowest(order, limit_bytes)
        if free.peak_bytes <= limit_bytes:
            return self._pruned(free, limit_bytes)
        c = self.candidates
        load = self.scheduler.load.copy()
        chosen: list[int] = []
        for candidate in order.tolist():
            over = load > limit_bytes
            before, behind = slice(None, c.needed[candidate]), slice(c.ready[candidate] + 1, None)
            if over[before].any() or over[behind].any():
                load[before] -= c.size_bytes[candidate]
                load[behind] -= c.size_bytes[candidate]
                chosen.append(candidate)
        return self.scheduler.within(np.array(chosen, np.int64), limit_bytes)

    def _search(self, schedule: Callable[[Int64s], Schedule], cost: Callable[[Schedule], int]) -> Schedule:
        """Return the cheapest schedule over the weights tried; among equals, the one that moves the fewest bytes."""
        optuna = _optuna()
        known: dict[bytes, Schedule] = {}
        best: list[Schedule] = []

        def rank(found: Schedule) -> tuple[int, int]:
            return cost(found), int(self.candidates.size_bytes[found.chosen].sum())

        def objective(trial: Any) -> float:
            weights = [trial.suggest_float(name, -1.0, 1.0) for name in NAMES]
            order = np.argsort(-(self.scores @ np.array(weights)), kind="stable")
            found = known.get(order.tobytes())
            if found is None:
                found = known[order.tobytes()] = schedule(order)
            if not best or rank(found) < rank(best[0]):
                best[:] = [found]
            if cost(found) <= 0:
                trial.study.stop()
            return float(cost(found))

        sampler = optuna.samplers.TPESampler(seed=self.seed, n_startup_trials=len(NAMES))
        study = optuna.create_study(sampler=sampler)
        for name in NAMES:
            study.enqueue_trial({other: float(other == name) for other in NAMES})
        study.optimize(objective, n_trials=len(NAMES) + _TRIALS)
        return best[0]

    def _plan(self, limit_bytes: int | None, found: Schedule | None, least_bytes: int = 0) -> SwapPlan:
        line, sizes = self.timeline, self.candidates.size_bytes
        moves: list[Move] = []
        waits: list[Wait] = []
        if found is not None:
            wait = np.roll(found.wait_us, line.peak)
            waits = [Wait(int(line.row[k]), int(wait[k])) for k in np.flatnonzero(wait)]
            # The scheduler counts time from the peak operator, with the copies out at the end of its round.
            peak_us = int(line.start_us[line.peak] + wait[: line.peak + 1].sum())
            before_us = peak_us - line.period_us - int(wait.sum())
            columns = (
                self.candidates.block[found.chosen], sizes[found.chosen], found.out_start + before_us,
                found.out_end + before_us, found.in_start + peak_us, found.in_end + peak_us,
            )  # fmt: skip
            moves = [Move(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]
        return SwapPlan(
            limit_bytes=limit_bytes,
            peak_bytes=found.peak_bytes if found is not None else least_bytes,
            feasible=found is not None,
            moved_bytes=sum(move.size_bytes for move in moves),
            overhead_ms=found.overhead_us / 1000 if found is not None else None,
            schedule=tuple(sorted(moves, key=lambda move: (move.out_start_us, move.block))),
            waits=tuple(waits),
            link=self.link,
            time_source=line.source,
            step=step_number(line.step),
            step_ms=line.period_us / 1000,
            peak_live_bytes=int(line.load_bytes.max()),
        )


def _optuna() -> Any:
    with needed("A search for swap plans", "plan"), warnings.catch_warnings():
        # In a notebook without ipywidgets, optuna's progress bars ask for them; none are shown here.
        warnings.filterwarnings("ignore", message="IProgress not found")
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
