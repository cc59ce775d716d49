"""Training of a correction from examples, cross-fitted by group, so that no learner has seen the runs that calibrate it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import GroupKFold

from vramcast.core.errors import DatasetError
from vramcast.learner import stacks, sum_quantile
from vramcast.learner.conformal import LEVELS, Array, Calibration, calibrate
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES
from vramcast.learner.model import MATMUL, PROCESS_NAMES, Head, Learned, Subject
from vramcast.learner.residual import ResidualQuantiles
from vramcast.learner.stacks import StackContext
from vramcast.learner.traits import CONVOLUTION

FOLDS: Final = 5  # arbitrary: more folds make each learner slightly better, and training proportionally longer
_FEWEST: Final = 30  # arbitrary: groups in a segment that are needed to try a learner
_FEWEST_TO_SPARE: Final = 5  # arbitrary: groups of a family that are needed to evaluate it separately
_MUST_HELP: Final = 0.95  # arbitrary: the learned error must be at most this share of the plain one


@dataclass(frozen=True, slots=True)
class Table:
    """Examples of one peak as arrays. A row's residual is log(measured / simulated).

    X has no columns if some example has no features: such a set can calibrate, but not train, a correction.
    """

    examples: tuple[Example, ...]
    subjects: tuple[Subject, ...]
    names: tuple[str, ...]
    X: Array
    y: Array
    groups: npt.NDArray[np.str_]
    censored: npt.NDArray[np.bool_]
    segments: npt.NDArray[np.str_]
    weights: Array


def subject_of(example: Example, contexts: Mapping[str, StackContext]) -> Subject:
    """Return the example as a job to correct, with the context of its stack if that is known."""
    subject = Subject.of(example)
    if (known := stacks.known_context(example, contexts)) is None:
        return subject
    beside = {"context": sum_quantile.uniform(known.high_bytes - known.size_bytes)}
    return replace(subject, context=known.size_bytes, beside=beside, is_measured=True)


def table_of(examples: Sequence[Example], contexts: Mapping[str, StackContext]) -> Table:
    """Return the examples whose reserved peak is known, or follows from the process peak; each group has the same weight.

    Raises:
        DatasetError: There are none.
    """
    chosen = [(example, stacks.measured_reserved(example, contexts)) for example in examples]
    usable = [(example, measured, example.reserved) for example, measured in chosen if measured is not None]
    if not usable:
        raise DatasetError("No example has a measured peak and a known context: measure more runs of each stack.")
    return _table(usable, contexts, NAMES)


def process_table_of(examples: Sequence[Example], contexts: Mapping[str, StackContext]) -> Table | None:
    """Return the examples whose process peak was measured on a stack with a known context; None: there are too few."""
    usable = [
        (example, example.measured_process, example.reserved + context)
        for example in examples
        if example.measured_process is not None and (context := stacks.context_of(example, contexts)) is not None
    ]
    groups = {example.group for example, _, _ in usable if not example.censored}
    return _table(usable, contexts, PROCESS_NAMES) if len(groups) >= _FEWEST else None


def _table(usable: Sequence[tuple[Example, int, int]], contexts: Mapping[str, StackContext], names: tuple[str, ...]) -> Table:
    """Return the table of (example, measured, simulated)."""
    chosen = tuple(example for example, _, _ in usable)
    subjects = tuple(subject_of(example, contexts) for example in chosen)
    counts = Counter(example.group for example in chosen)
    has_features = all(example.features for example in chosen)
    return Table(
        chosen,
        subjects,
        names,
        np.array([subject.row(names) for subject in subjects]) if has_features else np.zeros((len(chosen), 0)),
        np.array([np.log(measured / simulated) for _, measured, simulated in usable]),
        np.array([example.group for example in chosen]),
        np.array([example.censored for example in chosen]),
        np.array([subject.segment for subject in subjects]),
        np.array([1.0 / counts[example.group] for example in chosen]),
    )


def cross_fitted(table: Table, parameters: Mapping[str, Any], *, folds: int = FOLDS, seed: int = 0) -> Array:
    """Return quantiles of each row, n x LEVELS, predicted by a learner that has not seen the row's group; or 0."""
    found = np.zeros((len(table.y), len(LEVELS)))
    if not table.X.shape[1]:
        return found
    for known, new in _folds(table, folds, seed):
        found[new] = fitted(table, known, parameters, seed).predict_quantiles(table.X[new])
    return found


def _folds(table: Table, folds: int, seed: int) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return (learn, test) rows; groups are assigned by size, in an order that the seed shuffles."""
    n_groups = len(set(table.groups.tolist()))
    if n_groups < 2:
        return []
    splitter = GroupKFold(min(folds, n_groups), shuffle=True, random_state=seed)
    return list(splitter.split(table.X, table.y, table.groups))


def fitted(table: Table, rows: Any, parameters: Mapping[str, Any], seed: int) -> ResidualQuantiles:
    """Return a learner trained on these rows."""
    learner = ResidualQuantiles(random_state=seed, **parameters)
    return learner.fit(table.X[rows], table.y[rows], sample_weight=table.weights[rows], censored=table.censored[rows])


def helpful(table: Table, medians: Array) -> tuple[frozenset[str], frozenset[str]]:
    """Return where the learned median reduces the error on unseen models, on average over groups.

    Returns:
        The segments in which it does, and the families in them (by `Subject.family_key`) in which it does not.
    """
    active_segments, excluded_families = set(), set()
    families = np.array([subject.family_key for subject in table.subjects])
    for segment in (MATMUL, CONVOLUTION):
        if not _lowers_the_error(table, medians, table.segments == segment, _FEWEST):
            continue
        active_segments.add(segment)
        own = sorted(set(families[table.segments == segment].tolist()))
        judged = [
            key for key in own if len(set(table.groups[(families == key) & ~table.censored].tolist())) >= _FEWEST_TO_SPARE
        ]
        excluded_families |= {key for key in judged if not _lowers_the_error(table, medians, families == key, _FEWEST_TO_SPARE)}
    return frozenset(active_segments), frozenset(excluded_families)


def _lowers_the_error(table: Table, medians: Array, rows: npt.NDArray[np.bool_], fewest: int) -> bool:
    """Return whether the learned median has less error in these rows: in the mean by enough, and in the median no more."""
    if not table.X.shape[1]:
        return False
    rows = rows & ~table.censored
    if len(set(table.groups[rows].tolist())) < fewest:
        return False
    weights = table.weights[rows]
    plain, learned = np.abs(np.expm1(-table.y[rows])), np.abs(np.expm1(medians[rows] - table.y[rows]))
    means = [float(np.average(errors, weights=weights)) for errors in (plain, learned)]
    return means[1] <= _MUST_HELP * means[0] and float(np.median(learned)) <= float(np.median(plain))


def train(
    examples: Sequence[Example], parameters: Mapping[str, Any] | None = None, *, folds: int = FOLDS, seed: int = 0
) -> Learned:
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
    reserved, out_of_fold = _head(table, chosen, folds, seed)
    errors = {"reserved": _errors_by(table, out_of_fold[:, LEVELS.index(0.5)])}
    process = None
    if (of_process := process_table_of(examples, contexts)) is not None:
        process, out_of_fold = _head(of_process, chosen, folds, seed)
        errors["process"] = _errors_by(of_process, out_of_fold[:, LEVELS.index(0.5)])
    X = table.X[~table.censored]
    ranges = {name: (float(X[:, i].min()), float(X[:, i].max())) for i, name in enumerate(NAMES) if X.shape[1]}
    card = {
        "runs": len(table.y),
        "groups": len(set(table.groups.tolist())),
        "censored": int(table.censored.sum()),
        "seed": seed,
        "folds": folds,
        "parameters": chosen,
        "by": errors,
    }
    return Learned(reserved, process, contexts, ranges, n_models_by_trait(table), card)


def _head(table: Table, parameters: Mapping[str, Any], folds: int, seed: int) -> tuple[Head, Array]:
    """Return the correction of a table's peak, and the quantiles by which it was evaluated."""
    out_of_fold = cross_fitted(table, parameters, folds=folds, seed=seed)
    active_segments, excluded_families = helpful(table, out_of_fold[:, LEVELS.index(0.5)])
    used = [subject.is_among(active_segments, excluded_families) for subject in table.subjects]
    out_of_fold[~np.array(used)] = 0.0
    learner = fitted(table, np.arange(len(table.y)), parameters, seed) if active_segments else None
    levels = LEVELS if learner is not None else (0.5,)  # without a learner all quantiles are 0
    calibration = _calibrated(table, levels, out_of_fold[:, : len(levels)])
    return Head(learner, calibration, active_segments, table.names, excluded_families), out_of_fold


def _calibrated(table: Table, levels: Sequence[float], quantiles: Array) -> Calibration:
    return calibrate(levels, quantiles, table.y, table.groups.tolist(), [subject.traits for subject in table.subjects])


def n_models_by_trait(table: Table) -> dict[str, dict[str, int]]:
    """Return by trait and value the number of models that have a run with it."""
    seen: dict[str, dict[str, set[str]]] = {}
    for subject, group in zip(table.subjects, table.groups.tolist(), strict=True):
        for trait, value in subject.traits.items():
            seen.setdefault(trait, {}).setdefault(value, set()).add(group)
    return {trait: {value: len(models) for value, models in sorted(by.items())} for trait, by in sorted(seen.items())}


def recalibrated(learned: Learned, examples: Sequence[Example]) -> Learned:
    """Return the same trees, calibrated on other runs: a shipped correction on a site's own history.

    Args:
        learned: The correction whose trees stay.
        examples: Runs that its trees were not trained on; their contexts replace those of the same stack.
    Raises:
        DatasetError: No example can be used.
    """
    contexts = {**learned.contexts, **stacks.learn(examples)}
    table = table_of(examples, contexts)
    reserved, medians = _again(learned.reserved_head, table)
    errors = {"reserved": _errors_by(table, medians)}
    process = learned.process_head
    if process is not None and (of_process := process_table_of(examples, contexts)) is not None:
        process, medians = _again(process, of_process)
        errors["process"] = _errors_by(of_process, medians)
    card = {
        **learned.card,
        "calibrated_on": {"runs": len(table.y), "groups": len(set(table.groups.tolist()))},
        "by": errors,
    }
    n_models = n_models_by_trait(table)
    return replace(learned, reserved_head=reserved, process_head=process, contexts=contexts, n_models=n_models, card=card)


def _again(head: Head, table: Table) -> tuple[Head, Array]:
    """Return the head calibrated on a table, and its medians there."""
    quantiles = head.residuals(table.subjects)
    return replace(head, calibration=_calibrated(table, head.calibration.levels, quantiles)), quantiles[
        :, head.calibration.levels.index(0.5)
    ]


def _errors_by(table: Table, medians: Array) -> dict[str, dict[str, dict[str, float]]]:
    """Return by group its runs and the errors of the peak, simulated and corrected, on unseen models."""
    groupings = {
        "segment": table.segments.tolist(),
        "family": [subject.family for subject in table.subjects],
        "gpu": [example.gpu for example in table.examples],
        "stack": [example.stack for example in table.examples],
    }
    errors = {"simulated": np.abs(np.expm1(-table.y)), "corrected": np.abs(np.expm1(medians - table.y))}
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
