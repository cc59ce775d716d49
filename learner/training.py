"""From examples to a correction: cross-fitted by group, so that every calibrating run is one which its learner has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import GroupKFold

from vramcast.errors import DatasetError
from vramcast.learner import stacks
from vramcast.learner.conformal import calibrate, keys_of
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES
from vramcast.learner.model import CONVOLUTION, MATMUL, Learned, Subject, segment_of
from vramcast.learner.residual import LEVELS, Array, ResidualQuantiles
from vramcast.learner.stacks import StackContext

FOLDS: Final = 10  # arbitrary
_FEWEST: Final = 30  # arbitrary: groups in a segment from which a learner is tried
_MUST_HELP: Final = 0.95  # arbitrary: the learned error must be at most this share of the plain one


@dataclass(frozen=True, slots=True)
class Table:
    """Examples as arrays. A row's residual is log(measured / simulated reserved)."""

    examples: tuple[Example, ...]
    X: Array
    y: Array
    groups: npt.NDArray[np.str_]
    censored: npt.NDArray[np.bool_]
    segments: npt.NDArray[np.str_]
    weights: Array


def table_of(examples: Sequence[Example], contexts: Mapping[str, StackContext]) -> Table:
    """Return the examples whose reserved peak is known; each group has the same weight.

    Raises:
        DatasetError: none is.
    """
    chosen = [(example, stacks.measured_reserved(example, contexts)) for example in examples]
    usable = [(example, measured) for example, measured in chosen if measured is not None]
    if not usable:
        raise DatasetError("No example has a measured peak and a known context: measure more runs of each stack.")
    counts: dict[str, int] = {}
    for example, _ in usable:
        counts[example.group] = counts.get(example.group, 0) + 1
    return Table(
        tuple(example for example, _ in usable),
        np.array([[float(example.features[name]) for name in NAMES] for example, _ in usable]),
        np.array([np.log(measured / example.reserved) for example, measured in usable]),
        np.array([example.group for example, _ in usable]),
        np.array([example.censored for example, _ in usable]),
        np.array([segment_of(example.features) for example, _ in usable]),
        np.array([1.0 / counts[example.group] for example, _ in usable]),
    )


def cross_fitted(table: Table, parameters: Mapping[str, Any], *, folds: int = FOLDS, seed: int = 0) -> Array:
    """Return quantiles of each row, n x LEVELS, predicted by a learner which has not seen the row's group."""
    found = np.zeros((len(table.y), len(LEVELS)))
    for known, new in _folds(table, folds, seed):
        found[new] = fitted(table, known, parameters, seed).predict_quantiles(table.X[new])
    return found


def _folds(table: Table, folds: int, seed: int) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return (learn, test) rows; groups are dealt by their size, in an order which the seed shuffles."""
    n_groups = len(set(table.groups.tolist()))
    if n_groups < 2:
        return []
    splitter = GroupKFold(min(folds, n_groups), shuffle=True, random_state=seed)
    return list(splitter.split(table.X, table.y, table.groups))


def fitted(table: Table, rows: Any, parameters: Mapping[str, Any], seed: int) -> ResidualQuantiles:
    """Return a learner of these rows."""
    learner = ResidualQuantiles(random_state=seed, **parameters)
    return learner.fit(table.X[rows], table.y[rows], sample_weight=table.weights[rows], censored=table.censored[rows])


def helpful(table: Table, medians: Array) -> frozenset[str]:
    """Return the segments in which the learned median lowers the error of models it has not seen, on average over groups."""
    found = set()
    for segment in (MATMUL, CONVOLUTION):
        rows = (table.segments == segment) & ~table.censored
        if len(set(table.groups[rows].tolist())) < _FEWEST:
            continue
        weights = table.weights[rows]
        plain = float(np.average(np.abs(np.expm1(-table.y[rows])), weights=weights))
        learned = float(np.average(np.abs(np.expm1(medians[rows] - table.y[rows])), weights=weights))
        typical_plain = float(np.median(np.abs(np.expm1(-table.y[rows]))))
        typical = float(np.median(np.abs(np.expm1(medians[rows] - table.y[rows]))))
        if learned <= _MUST_HELP * plain and typical <= _MUST_HELP * typical_plain:
            found.add(segment)
    return frozenset(found)


def train(
    examples: Sequence[Example], parameters: Mapping[str, Any] | None = None, *, folds: int = FOLDS, seed: int = 0
) -> Learned:
    """Return what these examples teach.

    Args:
        examples: Of any stacks and families.
        parameters: Of `ResidualQuantiles`.
        folds: By which calibrating runs are kept from the learners that they judge.
        seed: The same examples and seed give the same correction.
    Raises:
        DatasetError: no example can be used.
    """
    chosen = dict(parameters or {})
    contexts = stacks.learn(examples)
    table = table_of(examples, contexts)
    out_of_fold = cross_fitted(table, chosen, folds=folds, seed=seed)
    helps = helpful(table, out_of_fold[:, LEVELS.index(0.5)])
    out_of_fold[~np.isin(table.segments, list(helps))] = 0.0
    calibration = calibrate(LEVELS, out_of_fold, table.y, table.groups.tolist(), _keys(table))
    measured = np.flatnonzero(~table.censored)
    ranges = {name: (float(table.X[measured, i].min()), float(table.X[measured, i].max())) for i, name in enumerate(NAMES)}
    learner = fitted(table, np.arange(len(table.y)), chosen, seed) if helps else None
    card = {
        "runs": len(table.y),
        "groups": len(set(table.groups.tolist())),
        "censored": int(table.censored.sum()),
        "seed": seed,
        "folds": folds,
        "parameters": chosen,
        "by": {what: _errors(table, out_of_fold, names) for what, names in _groupings(table).items()},
    }
    return Learned(learner, calibration, helps, contexts, ranges, card)


def recalibrated(learned: Learned, examples: Sequence[Example]) -> Learned:
    """Return the same trees, calibrated on other runs: a shipped correction on a site's own history.

    Args:
        learned: What stays.
        examples: Runs which its trees were not learned from; their contexts take the place of those of the same stack.
    Raises:
        DatasetError: no example can be used.
    """
    contexts = {**learned.contexts, **stacks.learn(examples)}
    table = table_of(examples, contexts)
    subjects = [Subject(e.features, e.reserved, e.gpu, e.family) for e in table.examples]
    quantiles = learned.residuals(subjects)
    calibration = calibrate(learned.calibration.levels, quantiles, table.y, table.groups.tolist(), _keys(table))
    card = {
        **learned.card,
        "calibrated_on": {"runs": len(table.y), "groups": len(set(table.groups.tolist()))},
        "by": {what: _errors(table, quantiles, names) for what, names in _groupings(table).items()},
    }
    return replace(learned, calibration=calibration, contexts=contexts, card=card)


def _keys(table: Table) -> list[tuple[str, ...]]:
    return [(*keys_of(e.gpu, e.family), str(segment)) for e, segment in zip(table.examples, table.segments, strict=True)]


def _groupings(table: Table) -> dict[str, list[str]]:
    return {
        "segment": [str(segment) for segment in table.segments],
        "family": [example.family for example in table.examples],
        "gpu": [example.gpu for example in table.examples],
        "stack": [example.stack for example in table.examples],
    }


def _errors(table: Table, out_of_fold: Array, names: list[str]) -> dict[str, dict[str, float]]:
    """Return of each name its runs and the errors of the reserved peak, simulated and corrected, on models not learned from."""
    plain = np.abs(np.expm1(-table.y))
    corrected = np.abs(np.expm1(out_of_fold[:, LEVELS.index(0.5)] - table.y))
    found = {}
    for name in sorted(set(names)):
        rows = (np.array(names) == name) & ~table.censored
        if rows.any():
            found[name] = {
                "runs": float(rows.sum()),
                "simulated_median": float(np.median(plain[rows])),
                "simulated_p90": float(np.quantile(plain[rows], 0.9)),
                "corrected_median": float(np.median(corrected[rows])),
                "corrected_p90": float(np.quantile(corrected[rows], 0.9)),
            }
    return found
