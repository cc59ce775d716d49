"""Comparison of a new artifact with the shipped one, on the history's own jobs.

Each job is scored by artifacts that have not seen its model in this history: the new one by cross-validation, the shipped one
as it is, with the contexts of this history. Jobs of a class that the shipped artifact does not cover are left out, because
an estimate takes their bound from public residuals.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vramcast.adoption import gate
from vramcast.core.location import FOLDER
from vramcast.core.plain import to_plain
from vramcast.estimates.bounds import learned as artifacts
from vramcast.estimates.bounds.support import Support
from vramcast.hardware.cards import device as find_device
from vramcast.hardware.context import Context
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.learner.examples import Example
from vramcast.learner.model import LearnedModel, Subject
from vramcast.learner.stacks import StackContext
from vramcast.learner.table import subject_of

_SAME: Final = 0.01  # arbitrary: bounds that differ by less are called equal
NAME: Final = "the shipped artifact"


@dataclass(frozen=True, slots=True)
class AtLevel:
    """The bounds of both artifacts at one level, each model with the same weight.

    Attributes:
        level: The level.
        coverage, coverage_shipped: Share of the runs below the bound.
        width, width_shipped: Median of bound / measured peak - 1, of the runs with an exact peak.
        change: Median of new bound / shipped bound - 1.
        because: Reasons for a wider bound; (): it is not wider.
    """

    level: float
    coverage: float | None
    coverage_shipped: float | None
    width: float | None
    width_shipped: float | None
    change: float
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArtifactComparison:
    """Both artifacts on the same runs.

    Attributes:
        runs, models: The compared runs, and their models.
        models_like, models_like_shipped: Measured models of the jobs' class behind each artifact: the median over the jobs.
        pinball, pinball_shipped: Mean quantile loss of the bounds, in shares of the measured peak.
        levels: The bounds by level.
        better: The better artifact on these runs, `new` or `shipped`; None: nothing can be compared.
        reasons: Reasons why the shipped one is better.
    """

    runs: int = 0
    models: int = 0
    models_like: int = 0
    models_like_shipped: int = 0
    pinball: float | None = None
    pinball_shipped: float | None = None
    levels: tuple[AtLevel, ...] = ()
    better: str | None = None
    reasons: tuple[str, ...] = field(default=())

    @property
    def wider(self) -> list[AtLevel]:
        """The levels at which the new bound is wider."""
        return [one for one in self.levels if one.because]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return to_plain(self)  # type: ignore[no-any-return]


def load() -> LearnedModel:
    """Return the shipped artifact.

    Raises:
        ArtifactError: It cannot be read.
    """
    return artifacts.load(FOLDER / "models" / artifacts.SHIPPED)


def is_covered(shipped: LearnedModel, example: Example) -> bool:
    """Return whether an estimate of this job without another artifact takes the shipped one's bound."""
    return not shipped.lacks(Subject.of(example).traits)


def as_estimated(
    scored: Iterable[Scored], examples: Mapping[str, Example], contexts: Mapping[str, StackContext], shipped: LearnedModel
) -> list[Scored]:
    """Return runs with the bounds of estimates: not below the built-in rule's where that has more models.

    Args:
        scored: Runs scored by the shipped artifact.
        examples: The same runs by id.
        contexts: The contexts with which they were scored.
        shipped: The shipped artifact.
    """
    return [_at_least(run, examples[run.id], contexts, shipped) for run in scored]


def _at_least(run: Scored, example: Example, contexts: Mapping[str, StackContext], shipped: LearnedModel) -> Scored:
    bound = artifacts.bound_of(example, shipped)
    if not isinstance(bound, artifacts.LearnedBound) or bound.at_least is None:
        return run
    is_process = run.measured_bytes == example.measured_process
    size_bytes = subject_of(example, contexts).context if is_process else 0
    context = Context(size_bytes, size_bytes, size_bytes, "", assumed=False)
    card = find_device(example.gpu)
    floors = {level: bound.at_least.quantile(level, card, context) for level in run.bounds if level not in run.promised}
    return replace(run, bounds={level: max(bound, floors.get(level, 0)) for level, bound in run.bounds.items()})


def compared(
    new: Sequence[Scored], shipped: Sequence[Scored], like: Sequence[tuple[int, int]], where: str = "the jobs held out"
) -> ArtifactComparison:
    """Return the comparison of both artifacts on the runs that both scored by the same peak.

    Args:
        new: Runs scored by the new artifact, with their models held out.
        shipped: Runs scored by the shipped artifact.
        like: By job, the models of its class behind the new and the shipped artifact.
        where: Name of the runs for readers.
    """
    theirs = {run.id: run for run in shipped}
    pairs = [(run, theirs[run.id]) for run in new if run.id in theirs and theirs[run.id].measured_bytes == run.measured_bytes]
    ours, others = gate.by_model(one for one, _ in pairs), gate.by_model(other for _, other in pairs)
    if not ours.keys() & others.keys():
        return ArtifactComparison()
    decided = gate.compared(ours, others, where, NAME)
    n_new, n_shipped = (int(statistics.median(column)) for column in zip(*like, strict=True))
    return ArtifactComparison(
        runs=len(pairs),
        models=len(ours),
        models_like=n_new,
        models_like_shipped=n_shipped,
        pinball=decided.figures.get("pinball"),
        pinball_shipped=decided.figures.get("pinball_present"),
        levels=tuple(_at_level(level, pairs, decided.figures, n_new, n_shipped) for level in gate.LEVELS),
        better="shipped" if decided.reasons else "new",
        reasons=tuple(decided.reasons),
    )


def _at_level(
    level: float, pairs: Sequence[tuple[Scored, Scored]], figures: Mapping[str, Any], n_new: int, n_shipped: int
) -> AtLevel:
    name = f"{level:g}"
    exact = [pair for pair in pairs if not pair[0].is_lower_bound]
    found = AtLevel(
        level,
        figures["coverage"].get(name),
        figures["coverage_present"].get(name),
        _by_model((run.group, run.bounds[level] / run.measured_bytes - 1) for run, _ in exact),
        _by_model((run.group, run.bounds[level] / run.measured_bytes - 1) for _, run in exact),
        _by_model((run.group, run.bounds[level] / other.bounds[level] - 1) for run, other in pairs) or 0.0,
    )
    return replace(found, because=tuple(_why(found, exact, n_new, n_shipped))) if found.change > _SAME else found


def _why(found: AtLevel, exact: Sequence[tuple[Scored, Scored]], n_new: int, n_shipped: int) -> list[str]:
    """Return the reasons why a bound becomes wider."""
    reasons: list[str] = []
    held = found.coverage_shipped
    if held is not None and held < found.level:
        reasons.append(f"the shipped bound covers only {100 * held:.1f} % of these jobs")
    supported = Support(n_new).level
    if n_new < n_shipped and supported < found.level:
        reasons.append(
            f"fewer models: {n_new} like them support {supported:.3f}, the shipped artifact's {n_shipped} support "
            f"{Support(n_shipped).level:.3f}"
        )
    room = _by_model((run.group, run.bounds[found.level] / run.estimated_bytes - 1) for _, run in exact)
    above = sorted(run.measured_bytes / run.estimated_bytes - 1 for _, run in exact)
    needed = above[min(int(found.level * len(above)), len(above) - 1)] if above else 0.0
    if room is not None and needed > room:
        reasons.append(
            f"larger residuals: {100 * found.level:g} % of the jobs take up to {100 * needed:.0f} % more than their estimate, "
            f"and the shipped bound has room for {100 * room:.0f} %"
        )
    if not reasons and found.level * (n_new + 1) > n_new - 1:  # the calibration takes the largest residual of all models
        reasons.append(f"with {n_new} models, the one with the largest residual decides the bound")
    return reasons or ["the residuals of these models differ more from each other than those behind the shipped bound"]


def _by_model(values: Iterable[tuple[str, float]]) -> float | None:
    """Return the median over models of each model's median; None without values."""
    members: dict[str, list[float]] = {}
    for model, value in values:
        members.setdefault(model, []).append(value)
    return statistics.median(statistics.median(own) for own in members.values()) if members else None
