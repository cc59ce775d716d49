"""The figures of `vramcast evaluate`: errors and failures by xMem's protocol, and what an upper bound is judged by.

xMem's definitions (M measured, E estimate, T the card's size; the notation of its published plotting code):

    MRE   median of |E - M| / M over the runs which did not run out of memory and were not said to
    C1    round 1: the estimator's "runs out of memory" equals what happened
    C2    C1, and for a run which ran also round 2: it runs again when capped at E
    PEF   share of runs with C2 false
    MCP   mean over the runs of   T - E   where C2 holds and the job ran
                                  T       where C2 holds and the job ran out of memory: nobody had to try
                                  -E      where C2 is false: what was reserved for a job that died

Round 2 is a run with a cap, or the simulator's: the trace is played with the cap, the allocator releasing and retrying. Where
there is neither it is inferred: the cap is at least the measured peak, which is stricter. `ways` counts each kind.

Censored runs, those whose measurement is only a lower bound, can only show a failure: a bound below it fails, one above it
says nothing and is left out. That can bias the coverage and the share of under-estimates either way: of such runs only
failures are counted, and those left out may hide more. `coverage_limits` says how far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from vramcast.learner.evaluation.scored_run import Scored

FACTORS: Final = ("family", "gpu", "optimizer")  # spec: the `by` of the JSON


Way: TypeAlias = Literal["first round", "second run", "emulated", "inferred", "not judged"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the two rounds say of one run.

    Attributes:
        failed: C2 is false; None: nobody ran round 2, and the measurement cannot tell.
        way: What decided it. "emulated": the simulator played the job with the cap. "inferred": bytes were compared, where the
            second run is missing.
    """

    failed: bool | None
    way: Way


def evaluate(scored: Sequence[Scored], *, level: float | None = None) -> dict[str, Any]:
    """Return the figures of `scored`, ready for JSON: unknown is None, no NaN.

    Args:
        scored: The runs.
        level: What a scheduler would request, for `pef` and `mcp_bytes`: None the estimate, as xMem does, else the bound at
            this level, where a run has one, and at most the card.
    Returns:
        `runs`; `mre`, `p90`, `max`, `signed_median` of estimate / measured - 1 as shares (0.03 is 3 %) by xMem's choice of
        runs; `under_rate`; `pef`; `mcp_bytes` a run, of the runs whose card is known; `coverage` and `overprovision` (median
        of bound / measured - 1) by level, as text; `pinball`, the mean quantile loss over levels and runs in shares of the
        measured peak; `by` family, gpu and optimizer the same.
    """
    by = {}
    for factor in FACTORS:
        names = sorted({getattr(run, factor) for run in scored})
        by[factor] = {name: _figures([run for run in scored if getattr(run, factor) == name], level) for name in names}
    return {**_figures(scored, level), "by": by}


def xmem_errors(scored: Iterable[Scored]) -> list[float]:
    """Return estimate / measured - 1 of the runs which xMem's MRE looks at."""
    return [run.error for run in scored if run.error is not None and not run.said_out_of_memory]


def levels(scored: Iterable[Scored]) -> list[float]:
    """Return the levels of all bounds, ascending."""
    return sorted({level for run in scored for level in run.bounds})


def covered(scored: Iterable[Scored], level: float) -> list[bool]:
    """Return of each run with a bound at `level` whether it held, where that can be told."""
    held = (run.covered_by(run.bounds[level]) for run in scored if level in run.bounds)
    return [value for value in held if value is not None]


def coverage_limits(scored: Iterable[Scored], level: float) -> tuple[float, float] | None:
    """Return what the coverage at `level` would be if all bounds that cannot be judged failed, or held; None without bounds."""
    held = [run.covered_by(run.bounds[level]) for run in scored if level in run.bounds]
    if not held:
        return None
    return held.count(True) / len(held), 1 - held.count(False) / len(held)


def excesses(scored: Iterable[Scored], level: float) -> list[float]:
    """Return bound / measured - 1 of each run with a bound at `level` and a measurement that is not a lower bound."""
    return [run.bounds[level] / run.measured_bytes - 1 for run in scored if level in run.bounds and not run.is_lower_bound]


def request_bytes(run: Scored, level: float | None) -> int:
    """Return what would be requested for a run: its estimate, or its bound at `level`, at most the whole card.

    A bound above the card does not say that the job runs out of memory, only that nobody promises it will not.
    """
    if level is None:
        return run.estimated_bytes
    size_bytes = run.bounds.get(level, run.estimated_bytes)
    return size_bytes if run.card_bytes is None else min(size_bytes, max(run.card_bytes, run.estimated_bytes))


def verdict(run: Scored, level: float | None = None) -> Verdict:
    """Return what the two rounds say of a run for which `request_bytes` was requested.

    Whether it runs out of memory at all, the estimate says, at any level. A second run also tells of a larger request if it
    survived, and of a smaller one if it died.
    """
    size_bytes = request_bytes(run, level)
    if run.said_out_of_memory != run.ran_out_of_memory:
        return Verdict(True, "first round")
    if run.ran_out_of_memory:
        return Verdict(False, "first round")
    if (survived := run.runs_in(size_bytes)) is not None:
        return Verdict(not survived, "emulated" if run.is_emulated else "second run")
    held = run.covered_by(size_bytes)
    return Verdict(None, "not judged") if held is None else Verdict(not held, "inferred")


def ways(scored: Iterable[Scored], level: float | None = None) -> dict[Way, int]:
    """Return how many runs were judged in which way."""
    counts = Counter(verdict(run, level).way for run in scored)
    return {way: counts[way] for way in get_args(Way)}


def saved_bytes(run: Scored, level: float | None = None) -> int | None:
    """Return what a run adds to the sum of the MCP; None where its card is unknown or it was not judged."""
    failed = verdict(run, level).failed
    if failed is None or run.card_bytes is None:
        return None
    size_bytes = request_bytes(run, level)
    if failed:
        return -size_bytes
    return run.card_bytes if run.ran_out_of_memory else run.card_bytes - size_bytes


def pinball(scored: Iterable[Scored]) -> float | None:
    """Return the mean quantile loss of all bounds in shares of the measured peak; None without a bound to judge.

    The loss of a bound is level x shortfall, or (1 - level) x excess: smallest, on average, at the true quantile.
    """
    losses = []
    for run in scored:
        for level, bound in run.bounds.items():
            if not run.is_lower_bound:
                short = 1 - bound / run.measured_bytes
                losses.append(max(level * short, (level - 1) * short))
    return _mean(losses)


def _figures(scored: Sequence[Scored], level: float | None) -> dict[str, Any]:
    """Return all figures but `by`."""
    errors: npt.NDArray[np.float64] = np.array(xmem_errors(scored), dtype=np.float64)
    sizes = np.abs(errors)
    held = [run.covered_by(run.estimated_bytes) for run in scored]
    failures = [failed for run in scored if (failed := verdict(run, level).failed) is not None]
    saved = [size for run in scored if (size := saved_bytes(run, level)) is not None]
    known = levels(scored)
    return {
        "runs": len(scored),
        "mre": _quantile(sizes, 0.5),
        "p90": _quantile(sizes, 0.9),
        "max": _quantile(sizes, 1.0),
        "signed_median": _quantile(errors, 0.5),
        "under_rate": _mean([not value for value in held if value is not None]),
        "pef": _mean(failures),
        "mcp_bytes": round(sum(saved) / len(saved)) if saved else None,
        "coverage": {f"{at:g}": _mean(covered(scored, at)) for at in known},
        "overprovision": {f"{at:g}": _quantile(np.array(excesses(scored, at)), 0.5) for at in known},
        "pinball": pinball(scored),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None  # fsum: the order of the runs does not matter


def _quantile(values: npt.NDArray[np.float64], at: float) -> float | None:
    return float(np.quantile(values, at)) if len(values) else None
