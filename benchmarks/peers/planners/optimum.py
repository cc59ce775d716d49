"""The lowest possible pool: exact for a few blocks, between two bounds for some more.

`exact` is our own search, for at most ten blocks. `solve` uses CP-SAT of OR-tools (optional: `pip install ortools`), which
gives a lower bound even if it does not finish. Peak live bytes are a lower bound too, but not always attainable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vramcast.core.errors import UsageError
from vramcast.plans.lifetimes import Lifetimes
from vramcast.tracer.format.trace import MIN_BLOCK_BYTES

N_EXACT: Final = 10  # arbitrary: a search of milliseconds, seconds at worst


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """The lowest known pool.

    Attributes:
        offset_bytes: int64[n], a placement of this height.
        height_bytes: Its height.
        bound_bytes: Lower bound of any pool; equal to `height_bytes` if the search finished.
    """

    offset_bytes: npt.NDArray[np.int64]
    height_bytes: int
    bound_bytes: int


def exact(lifetimes: Lifetimes) -> Optimum:
    """Return the lowest pool of at most `N_EXACT` blocks.

    Placing the blocks of an optimal pool again from its bottom to its top, each as low as possible, gives a pool that is no
    higher. So it is enough to try the orders in which the offsets never fall; a branch ends when it is as high as the
    best known pool, and the search ends at the peak live bytes.

    Raises:
        UsageError: there are more blocks.
    """
    n = len(lifetimes)
    if n > N_EXACT:
        raise UsageError(f"{n} blocks are too many for an exact search: {N_EXACT} at most, or use solve().")
    birth, death, size = lifetimes.birth.tolist(), lifetimes.death.tolist(), lifetimes.size_bytes.tolist()
    meets = [[j for j in range(n) if max(birth[i], birth[j]) < min(death[i], death[j])] for i in range(n)]
    by_size = sorted(range(n), key=lambda i: -size[i])
    bound = lifetimes.peak_live()[0]
    offset: dict[int, int] = {}
    best = (sum(size) + 1, dict[int, int]())

    def lowest(i: int) -> int:
        top = 0
        for low, high in sorted((offset[j], offset[j] + size[j]) for j in meets[i] if j in offset):
            if low - top >= size[i]:
                break
            top = max(top, high)
        return top

    def extend(floor: int, height: int) -> None:
        nonlocal best
        if len(offset) == n:
            best = (height, dict(offset))
            return
        # Later blocks lie no lower than they would now: the branch ends if that is already too high.
        if any(lowest(i) + size[i] >= best[0] for i in range(n) if i not in offset):
            return
        tried = set()
        for i in by_size:
            like = (size[i], birth[i], death[i])
            if i in offset or like in tried:
                continue
            tried.add(like)
            place = lowest(i)
            if place < floor:
                continue
            offset[i] = place
            extend(place, max(height, place + size[i]))
            del offset[i]
            if best[0] == bound:
                return

    extend(0, 0)
    return Optimum(np.array([best[1][i] for i in range(n)], np.int64), best[0] if n else 0, best[0] if n else 0)


def solve(lifetimes: Lifetimes, seconds: float = 30.0, *, workers: int = 1) -> Optimum:
    """Return CP-SAT's solution: no two rectangles (lifetime x place) overlap, and the highest is as low as possible.

    Args:
        lifetimes: Lifetimes of at most some hundred blocks.
        seconds: Time limit of the search.
        workers: Number of threads; with more than one, the choice among equally good placements is random.
    Raises:
        UsageError: OR-tools is not installed, or no placement was found in time.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise UsageError("The optimum of many blocks needs OR-tools, which is not installed: pip install ortools.") from None
    n = len(lifetimes)
    units = (lifetimes.size_bytes // MIN_BLOCK_BYTES).tolist()
    birth, death = lifetimes.birth.tolist(), lifetimes.death.tolist()
    model = cp_model.CpModel()
    height = model.new_int_var(lifetimes.peak_live()[0] // MIN_BLOCK_BYTES, sum(units), "height")
    offset = [model.new_int_var(0, sum(units) - units[i], f"offset {i}") for i in range(n)]
    model.add_no_overlap_2d(
        [model.new_fixed_size_interval_var(birth[i], death[i] - birth[i], f"life {i}") for i in range(n)],
        [model.new_fixed_size_interval_var(offset[i], units[i], f"place {i}") for i in range(n)],
    )
    for i in range(n):
        model.add(offset[i] + units[i] <= height)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise UsageError(f"No placement of {n} blocks was found in {seconds:g} s: give more, or fewer blocks.")
    places = np.array([solver.value(place) for place in offset], np.int64) * MIN_BLOCK_BYTES
    height_bytes = int((places + lifetimes.size_bytes).max(initial=0))
    return Optimum(places, height_bytes, math.ceil(solver.best_objective_bound - 1e-6) * MIN_BLOCK_BYTES)
