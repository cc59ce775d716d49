"""Training of a correction from examples, cross-fitted by group, so that no learner has seen the runs that calibrate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from vramcast.core.errors import DatasetError
from vramcast.core.plain import to_plain
from vramcast.learner import gate, stacks
from vramcast.learner.conformal import LEVELS, Array, Calibration, calibrate
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES
from vramcast.learner.gains import Gains
from vramcast.learner.model import Head, LearnedModel, Scope
from vramcast.learner.residual import ResidualQuantiles
from vramcast.learner.table import ExampleTable, Folds, folds_of, n_models_by_trait, process_table_of, table_of

FOLDS: Final = 5  # arbitrary: more folds make each learner slightly better, and training proportionally longer
DECIDED: Final = (0.9, 0.95, 0.98)  # arbitrary: levels that people say
_MEDIAN: Final = LEVELS.index(0.5)


@dataclass(frozen=True, slots=True)
class CrossFittedQuantiles:
    """Quantiles of runs, each by a learner that has not seen the run's model.

    Attributes:
        quantiles: The quantiles, n x LEVELS; 0 without features.
        folds: Rows to learn from, and rows predicted.
        learners: The learner of each fold.
    """

    quantiles: Array
    folds: Folds
    learners: Mapping[int, ResidualQuantiles]


def cross_fitted(
    table: ExampleTable, parameters: Mapping[str, Any], *, folds: int = FOLDS, seed: int = 0
) -> CrossFittedQuantiles:
    """Return the quantiles of each row by a learner that has not seen the row's group."""
    can_learn = len(set(table.groups[table.can_teach & ~table.censored].tolist())) > folds
    rows = folds_of(table, folds, seed) if can_learn else []
    learners = {fold: fitted(table, known, parameters, seed) for fold, (known, _) in enumerate(rows)}
    quantiles = np.zeros((len(table.y), len(LEVELS)))
    for fold, (_, new) in enumerate(rows):
        quantiles[new] = learners[fold].predict_quantiles(table.X[new])
    quantiles[~table.has_features] = 0.0
    return CrossFittedQuantiles(quantiles, rows, learners)


def fitted(table: ExampleTable, rows: Any, parameters: Mapping[str, Any], seed: int) -> ResidualQuantiles:
    """Return a learner trained on those of these rows that have features and no second end.

    The ends of a residual depend on the size of the card, so that trees would learn from them how cards were chosen.
    """
    rows = rows[table.can_teach[rows]]
    learner = ResidualQuantiles(random_state=seed, **parameters)
    return learner.fit(table.X[rows], table.low[rows], sample_weight=table.weights[rows], censored=table.censored[rows])


def train(
    examples: Sequence[Example], parameters: Mapping[str, Any] | None = None, *, folds: int = FOLDS, seed: int = 0
) -> LearnedModel:
    """Return the correction learned from these examples.

    Args:
        examples: Examples of any stacks and families.
        parameters: Parameters of `ResidualQuantiles`.
        folds: Number of folds that separate calibrating runs from the learners they calibrate.
        seed: The same examples and seed give the same correction.
    Raises:
        DatasetError: No example can be used, or each is a lower bound.
    """
    chosen = dict(parameters or {})
    contexts = stacks.learn(examples)
    table = table_of(examples, contexts)
    if table.censored.all():
        raise DatasetError("All runs are lower bounds (out of memory): add at least one with a measured peak.")
    tables = {"reserved": table}
    if (of_process := process_table_of(examples, contexts)) is not None:
        tables["process"] = of_process
    trained = {peak: _head(one, chosen, folds, seed) for peak, one in tables.items()}
    X = table.X[~table.censored]
    ranges = {name: (float(X[:, i].min()), float(X[:, i].max())) for i, name in enumerate(NAMES) if table.has_features.all()}
    card = {
        "runs": len(table.y),
        "groups": len(set(table.groups.tolist())),
        "censored": int(table.censored.sum()),
        "seed": seed,
        "folds": folds,
        "parameters": chosen,
        "by": {peak: _errors_by(one, trained[peak].corrected) for peak, one in tables.items()},
        "trees": {peak: to_plain(one.gains) for peak, one in trained.items()},
        "decide": {peak: _deciding(one, trained[peak].head.calibration) for peak, one in tables.items()},
    }
    heads = {peak: one.head for peak, one in trained.items()}
    return LearnedModel(heads["reserved"], heads.get("process"), contexts, ranges, n_models_by_trait(table), card)


@dataclass(frozen=True, slots=True)
class _Trained:
    """The correction of one peak, the error of each run's point on unseen models, and the gains of the trees."""

    head: Head
    corrected: Array
    gains: Gains


def _head(table: ExampleTable, parameters: Mapping[str, Any], folds: int, seed: int) -> _Trained:
    fit = cross_fitted(table, parameters, folds=folds, seed=seed)
    points = gate.point_losses(table, fit.quantiles[:, _MEDIAN])
    bounded = corrected = Scope()
    gains = Gains()
    if fit.learners:
        of_bounds = gate.bound_losses(table, fit.quantiles, fit.folds).gains(seed=seed)
        of_points = points.gains(seed=seed)
        bounded, corrected = gate.scope_of(of_bounds), gate.scope_of(of_points)
        used = sorted(bounded.families | corrected.families)
        costs = {name: gate.importances(table, fit.learners, fit.folds, name, seed=seed) for name in used}
        gains = Gains(of_bounds, of_points, costs)
    errors = np.where([subject in corrected for subject in table.subjects], points.learned, points.plain)
    fit.quantiles[[subject not in bounded for subject in table.subjects]] = 0.0
    is_used = bool(bounded.families or corrected.families)
    learner = fitted(table, np.arange(len(table.y)), parameters, seed) if is_used else None
    levels = LEVELS if learner is not None else (0.5,)  # without a learner all quantiles are 0
    calibration = _calibrated(table, levels, fit.quantiles[:, : len(levels)])
    return _Trained(Head(learner, calibration, bounded, corrected, table.names, table.offset), errors, gains)


def _deciding(table: ExampleTable, calibration: Calibration) -> dict[str, dict[str, list[Any]]]:
    """Return, by class and level, the run that alone sets the bound, its residual, and the bound's."""
    found: dict[str, dict[str, list[Any]]] = {}
    for group in calibration.groups.classes():
        traits = table.subjects[int(group.rows[0])].traits
        for level, one in zip(DECIDED, calibration.corrections(DECIDED, traits), strict=True):
            row = int(np.argmin(np.abs(calibration.scores[:, one.column] - one.value)))
            found.setdefault(group.name, {})[f"{level:g}"] = [table.examples[row].id, float(table.y[row]), one.value]
    return found


def _calibrated(table: ExampleTable, levels: Sequence[float], quantiles: Array) -> Calibration:
    return calibrate(levels, quantiles, table.y, table.groups.tolist(), [subject.traits for subject in table.subjects])


def recalibrated(learned: LearnedModel, examples: Sequence[Example]) -> LearnedModel:
    """Return the same trees, calibrated on other runs: a shipped correction on a site's own history.

    Args:
        learned: The correction whose trees stay.
        examples: Runs that its trees were not trained on; their contexts replace those of the same stack.
    Raises:
        DatasetError: No example can be used.
    """
    contexts = {**learned.contexts, **stacks.learn(examples)}
    table = table_of(examples, contexts, learned.reserved_head.offset)
    reserved, corrected = _again(learned.reserved_head, table)
    errors = {"reserved": _errors_by(table, corrected)}
    decide = {"reserved": _deciding(table, reserved.calibration)}
    process = learned.process_head
    if process is not None and (of_process := process_table_of(examples, contexts, process.offset)) is not None:
        process, corrected = _again(process, of_process)
        errors["process"] = _errors_by(of_process, corrected)
        decide["process"] = _deciding(of_process, process.calibration)
    card = {
        **learned.card,
        "calibrated_on": {"runs": len(table.y), "groups": len(set(table.groups.tolist()))},
        "by": errors,
        "decide": decide,
    }
    n_models = n_models_by_trait(table)
    return replace(learned, reserved_head=reserved, process_head=process, contexts=contexts, n_models=n_models, card=card)


def _again(head: Head, table: ExampleTable) -> tuple[Head, Array]:
    """Return the head calibrated on a table, and the error of each run's point there."""
    calibration = _calibrated(table, head.calibration.levels, head.residuals(table.subjects))
    points = head.points_of(table.subjects, table.contexts.tolist())
    return replace(head, calibration=calibration), np.abs(points / table.measured - 1)


def _errors_by(table: ExampleTable, corrected: Array) -> dict[str, dict[str, dict[str, float]]]:
    """Return by group its runs and the errors of the peak, simulated and corrected, on unseen models."""
    groupings = {
        "segment": table.segments.tolist(),
        "family": [subject.family for subject in table.subjects],
        "gpu": [example.gpu for example in table.examples],
        "stack": [example.stack for example in table.examples],
    }
    errors = {"simulated": gate.point_losses(table, np.zeros(len(table.y))).plain, "corrected": corrected}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for what, names in groupings.items():
        found[what] = {}
        for name in sorted(set(names)):
            rows = (np.array(names) == name) & ~table.censored
            if rows.any():
                found[what][name] = {"runs": float(rows.sum())}
                for kind, of in errors.items():
                    found[what][name][f"{kind}_median"] = float(np.median(of[rows]))
                    found[what][name][f"{kind}_p90"] = float(np.quantile(of[rows], 0.9))
    return found
