"""Metrics of `vramcast evaluate`: errors and failures by xMem's protocol, coverage and over-provision of bounds.

xMem's definitions (M measured, E estimate, T the card's size; the notation of its published plotting code):

    MRE   median of |E - M| / M over the runs that neither ran out of memory nor were predicted to
    C1    round 1: the prediction "runs out of memory" equals the outcome
    C2    C1, and for a run that succeeded also round 2: it succeeds again when capped at E
    PEF   share of runs with C2 false
    MCP   mean over the runs of   T - E   where C2 holds and the job ran
                                  T       where C2 holds and the job ran out of memory: no attempt was needed
                                  -E      where C2 is false: reserved for a job that died

Round 2 is a real run with a cap, or a simulated one: the trace is replayed with the cap, and the allocator releases and
retries. Without either it is inferred: the cap must be at least the measured peak, which is stricter. `ways` counts each
kind.

Censored runs, whose measurement is only a lower bound, can only show a failure: a bound below the measurement fails; a
bound above it proves nothing and is left out. That can bias the coverage and the share of under-estimates either way: only
the failures of such runs are counted, and those left out may hide more. `coverage_limits` gives the range.
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
class RoundsOutcome:
    """The outcome of the two rounds for one run.

    Attributes:
        failed: C2 is false; None: round 2 was not run, and the measurement cannot decide.
        way: The source of the decision. "emulated": the simulator replayed the job with the cap. "inferred": bytes were
            compared, for want of a second run.
    """

    failed: bool | None
    way: Way


def evaluate(scored: Sequence[Scored], *, level: float | None = None) -> dict[str, Any]:
    """Return the metrics of `scored`, ready for JSON: unknown is None, no NaN.

    Args:
        scored: The runs.
        level: The request that `pef` and `mcp_bytes` assume: None the estimate, as in xMem, else the bound at this level,
            if a run has one, and at most the card.

    Returns:
        `runs`; `mre`, `p90`, `max`, `signed_median` of estimate / measured - 1 as shares (0.03 is 3 %) by xMem's choice of
        runs; `under_rate`; `pef`; `mcp_bytes` per run, for the runs whose card is known; `coverage` and `overprovision`
        (median of bound / measured - 1) by level, as text; `pinball`, the mean quantile loss over levels and runs in shares
        of the measured peak; `by` family, gpu and optimizer the same.

    Example:
        >>> figures = vramcast.evaluate([run])
        >>> figures["mre"], figures["coverage"]
        (0.125, {'0.99': 1.0})
    """
    by = {}
    for factor in FACTORS:
        names = sorted({getattr(run, factor) for run in scored})
        by[factor] = {name: _figures([run for run in scored if getattr(run, factor) == name], level) for name in names}
    return {**_figures(scored, level), "by": by}


def xmem_errors(scored: Iterable[Scored]) -> list[float]:
    """Return estimate / measured - 1 of the runs that xMem's MRE includes."""
    return [run.error for run in scored if run.error is not None and not run.said_out_of_memory]


def levels(scored: Iterable[Scored]) -> list[float]:
    """Return the levels of all bounds, ascending."""
    return sorted({level for run in scored for level in run.bounds})


def covered(scored: Iterable[Scored], level: float) -> list[bool]:
    """Return for each run with a bound at `level` whether it held, if that is known."""
    held = (run.covered_by(run.bounds[level]) for run in scored if level in run.bounds)
    return [value for value in held if value is not None]


def coverage_limits(scored: Iterable[Scored], level: float) -> tuple[float, float] | None:
    """Return the coverage at `level` if all undecided bounds failed, and if all held; None without bounds."""
    held = [run.covered_by(run.bounds[level]) for run in scored if level in run.bounds]
    if not held:
        return None
    return held.count(True) / len(held), 1 - held.count(False) / len(held)


def excesses(scored: Iterable[Scored], level: float) -> list[float]:
    """Return bound / measured - 1 of each run with a bound at `level` and a measurement that is not a lower bound."""
    return [run.bounds[level] / run.measured_bytes - 1 for run in scored if level in run.bounds and not run.is_lower_bound]


def request_bytes(run: Scored, level: float | None) -> int:
    """Return the request for a run: its estimate, or its bound at `level`, at most the whole card.

    A bound above the card does not mean that the job runs out of memory, only that success is not guaranteed.
    """
    if level is None:
        return run.estimated_bytes
    size_bytes = run.bounds.get(level, run.estimated_bytes)
    return size_bytes if run.card_bytes is None else min(size_bytes, max(run.card_bytes, run.estimated_bytes))


def verdict(run: Scored, level: float | None = None) -> RoundsOutcome:
    """Return the outcome of the two rounds for a run whose request was `request_bytes`.

    At any level, the point estimate predicts whether the job runs out of memory at all. A second run also decides for a
    larger request if it succeeded, and for a smaller one if it died.
    """
    size_bytes = request_bytes(run, level)
    if run.said_out_of_memory != run.ran_out_of_memory:
        return RoundsOutcome(True, "first round")
    if run.ran_out_of_memory:
        return RoundsOutcome(False, "first round")
    if (survived := run.runs_in(size_bytes)) is not None:
        return RoundsOutcome(not survived, "emulated" if run.is_emulated else "second run")
    held = run.covered_by(size_bytes)
    return RoundsOutcome(None, "not judged") if held is None else RoundsOutcome(not held, "inferred")


def ways(scored: Iterable[Scored], level: float | None = None) -> dict[Way, int]:
    """Return the number of runs decided in each way."""
    counts = Counter(verdict(run, level).way for run in scored)
    return {way: counts[way] for way in get_args(Way)}


def saved_bytes(run: Scored, level: float | None = None) -> int | None:
    """Return a run's contribution to the sum of the MCP; None: its card is unknown, or it is undecided."""
    failed = verdict(run, level).failed
    if failed is None or run.card_bytes is None:
        return None
    size_bytes = request_bytes(run, level)
    if failed:
        return -size_bytes
    return run.card_bytes if run.ran_out_of_memory else run.card_bytes - size_bytes


def pinball(scored: Iterable[Scored]) -> float | None:
    """Return the mean quantile loss of all bounds in shares of the measured peak; None without a bound to evaluate.

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
    """Return all metrics except `by`."""
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
