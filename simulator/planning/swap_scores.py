"""How much it helps to swap a block out: the four scores of arXiv 1903.06631, higher is better.

    DOA    duration of absence    time between the two accesses, less the time of both copies
    AOA    area of absence        DOA x bytes; DOA / bytes where DOA is negative
    WDOA   weighted               sum of the load over the operators of the absence
    SWDOA  submodular             WDOA of the best block; its bytes are taken off the load, and so on with the rest

Inferred from the paper's code, which differs from it in places: the sums run over operators, not over time; the score SWDOA is
the WDOA which a block has when its turn comes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vramcast.simulator.planning.swap_links import Link
from vramcast.simulator.planning.swap_timeline import Candidates, Timeline

Floats = npt.NDArray[np.float64]
NAMES = ("DOA", "AOA", "WDOA", "SWDOA")


def scores(timeline: Timeline, candidates: Candidates, link: Link) -> Floats:
    """Return the standardised scores, float64 [candidates, 4] in the order of `NAMES`: mean 0 and deviation 1, or all 0."""
    raw = raw_scores(timeline, candidates, link)
    if not len(raw):
        return raw
    deviation = raw.std(axis=0)
    return np.asarray((raw - raw.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0))


def raw_scores(timeline: Timeline, candidates: Candidates, link: Link) -> Floats:
    """Return the scores as they are defined, float64 [candidates, 4]: microseconds, microseconds x bytes, bytes, bytes."""
    sizes = candidates.size_bytes
    if not len(candidates):
        return np.zeros((0, len(NAMES)))
    durations = np.roll(timeline.duration_us, -timeline.peak)
    load = np.roll(timeline.load_bytes, -timeline.peak)
    ends = np.cumsum(durations)
    # From the end of the last access, round the circle, to the begin of the next: behind `ready`, and before `needed`.
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
