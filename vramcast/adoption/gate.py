"""The gate for a new artifact: it may replace the current one if it is complete, reaches its coverage, and is no worse.

Each is evaluated on runs of models that it has not seen:

    the new one      by cross-validation over models, on all runs
    the current one  as it is, on runs of models new to it; and on its own training runs by the
                     cross-validation metrics stored with it

Each model has the same weight, because the guarantee is about the next model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.core.text import printable
from vramcast.learner.conformal import models_needed
from vramcast.learner.evaluation.scored_run import Scored

LEVELS: Final = (0.9, 0.95, 0.99)  # spec: the bounds of an estimate's JSON
WORSE: Final = 0.05  # arbitrary: the allowed relative increase of the pinball loss
_SPREADS: Final = 2.0  # arbitrary: standard errors attributed to chance, one in forty
_FEWEST: Final = 5  # arbitrary: models needed to compare two artifacts
_FAR_WORSE: Final = 2.0  # arbitrary: ratio of losses that even fewer models do not attribute to chance


@dataclass(frozen=True, slots=True)
class OfModel:
    """The performance of bounds on the runs of one model.

    Attributes:
        runs: Number of runs that can be evaluated.
        held: By level, the share of them below the bound.
        pinball: Mean quantile loss in shares of the measured peak; None: all are lower bounds.
    """

    runs: int
    held: Mapping[str, float]
    pinball: float | None


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The decision of the gate.

    Attributes:
        reasons: Reasons to reject the new artifact; empty: it may be deployed.
        figures: The compared metrics, for `adopted.json`.
        worse: Reasons that count unless a user wants the new artifact all the same: another one is better.
    """

    reasons: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    worse: list[str] = field(default_factory=list)


def by_model(scored: Iterable[Scored]) -> dict[str, OfModel]:
    """Return the performance of the bounds on each model; of lower bounds only failures count."""
    members: dict[str, list[Scored]] = {}
    for run in scored:
        members.setdefault(run.group, []).append(run)
    return {model: one for model, runs in members.items() if (one := _of_model(runs)).runs}


def _of_model(runs: Sequence[Scored]) -> OfModel:
    held: dict[str, float] = {}
    judged = 0
    for level in LEVELS:
        known = [kept for run in runs if level in run.bounds and (kept := run.covered_by(run.bounds[level])) is not None]
        judged = max(judged, len(known))
        if known:
            held[f"{level:g}"] = sum(known) / len(known)
    losses = [_loss(run) for run in runs if run.bounds and not run.is_lower_bound]
    return OfModel(judged, held, math.fsum(losses) / len(losses) if losses else None)


def _loss(run: Scored) -> float:
    """Return the mean quantile loss of a run's bounds in shares of its measured peak."""
    short = [(level, 1 - size_bytes / run.measured_bytes) for level, size_bytes in run.bounds.items()]
    return math.fsum(max(level * by, (level - 1) * by) for level, by in short) / len(short)


def coverage(models: Mapping[str, OfModel]) -> dict[str, float]:
    """Return the share of runs below the bound by level, each model with the same weight."""
    found = {}
    for name in (f"{level:g}" for level in LEVELS):
        known = [one.held[name] for one in models.values() if name in one.held]
        if known:
            found[name] = math.fsum(known) / len(known)
    return found


def promised(scored: Iterable[Scored]) -> list[Scored]:
    """Return the runs with only those bounds that are guaranteed: the others have too few models of their class."""
    return [replace(run, bounds={at: bound for at, bound in run.bounds.items() if at in run.promised}) for run in scored]


def promise(models: Mapping[str, OfModel]) -> list[str]:
    """Return reasons for the guaranteed levels whose coverage is too low by more than chance."""
    reasons = []
    found = coverage(models)
    for level in LEVELS:
        name = f"{level:g}"
        n = sum(name in one.held for one in models.values())
        least = _least(level, n) if n >= models_needed(level) else 0.0
        if found.get(name, 1.0) < least:
            reasons.append(
                f"the bound at {name} covers {100 * found[name]:.1f} % of the runs of {n} models; at least "
                f"{100 * least:.1f} % are expected"
            )
    return reasons


def narrower(new: Mapping[str, OfModel], old: Mapping[str, OfModel]) -> list[str]:
    """Return a reason if fewer models can be evaluated than for the old artifact: runs never disappear, but packages may."""
    if not new:
        return ["no run can be evaluated: each stack needs runs of several models"]
    lost = [model for model in old if model not in new]
    if len(lost) <= WORSE * len(old):
        return []
    return [
        f"{len(lost)} of the {len(old)} models of the current artifact cannot be evaluated now, such as "
        f"{printable(lost[0], 60)}: check that all packages are installed, and that their rows are unchanged"
    ]


def compared(
    new: Mapping[str, OfModel], old: Mapping[str, OfModel], where: str, other: str = "the current artifact"
) -> GateDecision:
    """Return whether the new artifact is worse than the old one on models that both were evaluated on.

    Args:
        new, old: Performance by model, on the same runs.
        where: Name of these runs for readers.
        other: Name of the old artifact for readers.
    """
    shared = [model for model in sorted(new) if model in old]
    figures: dict[str, Any] = {"models": len(shared)}
    reasons = []
    ours, theirs = {m: new[m] for m in shared}, {m: old[m] for m in shared}
    figures |= {"coverage": coverage(ours), "coverage_present": coverage(theirs)}
    for level in LEVELS:
        name = f"{level:g}"
        change = np.array(
            [ours[m].held[name] - theirs[m].held[name] for m in shared if {name} <= ours[m].held.keys() & theirs[m].held]
        )
        if len(change) < _FEWEST:
            continue
        if figures["coverage"][name] < _least(level, len(change)) and float(change.mean()) < -_chance(change):
            reasons.append(
                f"on {where} the bound at {name} covers {100 * figures['coverage'][name]:.1f} %, that of {other} "
                f"{100 * figures['coverage_present'][name]:.1f} %"
            )
    losses = np.array(
        [(ours[m].pinball, theirs[m].pinball) for m in shared if None not in (ours[m].pinball, theirs[m].pinball)]
    )
    if len(losses):
        mine, its = (float(mean) for mean in losses.mean(axis=0))
        figures |= {"pinball": mine, "pinball_present": its}
        allowed = WORSE if len(losses) >= _FEWEST else _FAR_WORSE - 1
        if mine > (1 + allowed) * its and mine - its > _chance(losses[:, 0] - losses[:, 1]):
            reasons.append(
                f"on {where} its quantile loss is {100 * mine:.2f} % of the peak, that of {other} "
                f"{100 * its:.2f} %: more than {100 * allowed:g} % worse"
            )
    return GateDecision(reasons, figures)


def _least(level: float, models: int) -> float:
    """Return the least coverage of a true bound at `level` that chance explains on this many models."""
    return level - _SPREADS * math.sqrt(level * (1 - level) / models)


def _chance(change: npt.NDArray[np.float64]) -> float:
    """Return how far a mean over models may differ from 0 by chance; 0 for few models, whose spread means little."""
    return 0.0 if len(change) < _FEWEST else _SPREADS * float(np.std(change, ddof=1)) / math.sqrt(len(change))


def only(scored: Iterable[Scored], ids: Collection[str]) -> list[Scored]:
    """Return the runs with these ids."""
    return [run for run in scored if run.id in ids]
