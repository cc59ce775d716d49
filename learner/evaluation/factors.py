"""Factors that influence the error, and the uncertainty of its metrics: an analysis of variance, and draws of models.

xMem's protocol has both: runs over a grid of model, optimizer and batch size for the analysis of variance, and Monte Carlo
draws of configurations for the metrics. Here any list of runs serves for either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from vramcast.learner.evaluation.metrics import verdict
from vramcast.learner.evaluation.scored_run import Scored

N_PERMUTATIONS: Final = 999  # arbitrary: the smallest p is then 0.001
N_DRAWS: Final = 1000  # arbitrary: the ends of a 95 % interval are then accurate to about a tenth of its width
_MAX_LEVELS_SHARE: Final = 0.5  # arbitrary: share of the runs; a factor with more levels explains everything and is meaningless
_TOLERANCE: Final = 1e-9  # arbitrary: share of the variance; anything below is rounding

_Matrix: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one factor on top of all others.

    Attributes:
        factor: model, optimizer, batch or gpu.
        degrees: Degrees of freedom; 0: the other factors determine it, for example if each model ran on one card.
        share: Part of the variance left by the other factors that this one explains (partial eta squared). It is above 0 by
            chance too, and grows with the degrees of freedom.
        f: The F statistic.
        p_value: Probability of an F at least as large without this effect, by permutation. f and p_value are None if no
            degree of freedom is left.
    """

    factor: str
    degrees: int
    share: float
    f: float | None
    p_value: float | None


@dataclass(frozen=True, slots=True)
class Anova:
    """The number of runs `n`, the effects, and the degrees of freedom left for the noise."""

    n: int
    effects: tuple[Effect, ...]
    residual_degrees: int


@dataclass(frozen=True, slots=True)
class Draws:
    """MRE and PEF of each draw, except for draws without a run to evaluate."""

    mre: tuple[float, ...]
    pef: tuple[float, ...]


def anova(
    scored: Sequence[Scored],
    *,
    of: Literal["error", "size"] = "error",
    n_permutations: int = N_PERMUTATIONS,
) -> Anova:
    """Return the effects of model, optimizer, batch and gpu on the error.

    Args:
        scored: Runs; those whose measurement is only a lower bound are left out.
        of: "error": log(estimate / measured), whose effects are biases that could be learned; "size": its absolute value.
        n_permutations: Number of permutations for the p values.
    Returns:
        Main effects with type II sums of squares: each factor on top of all others. Model, optimizer and gpu are
        categories, the batch is its logarithm. Factors that do not vary are left out, as are the batch if a run has none,
        and categories with more levels than half of the runs. The p values come from permuted residuals (Freedman and Lane,
        1983): errors have heavy tails, so that no table of F applies.
    """
    runs = [run for run in scored if not run.is_lower_bound]
    errors = np.array([math.log(run.estimated_bytes / run.measured_bytes) for run in runs])
    response = np.abs(errors) if of == "size" else errors
    columns = _columns(runs)
    if not columns:
        return Anova(len(runs), (), max(len(runs) - 1, 0))
    whole = _basis(list(columns.values()), len(runs))
    random = np.random.default_rng(0)
    left = len(runs) - whole.shape[1]
    effects = []
    for factor in columns:
        others = _basis([column for name, column in columns.items() if name != factor], len(runs))
        residual = response - others @ (others.T @ response)
        degrees = whole.shape[1] - others.shape[1]
        explained, noise = _split(residual[:, None], whole, others)
        total = float(explained[0] + noise[0])
        vanishes = total <= _TOLERANCE * float(np.sum(response**2))
        share = 0.0 if vanishes else float(explained[0]) / total
        if not degrees or left <= 0 or vanishes:
            effects.append(Effect(factor, degrees, share, None, None))
            continue
        shuffled = random.permuted(np.repeat(residual[:, None], n_permutations, axis=1), axis=0)
        by_chance, noise_by_chance = _split(shuffled, whole, others)
        # F grows with explained / (explained + noise); cross-multiplied, because the sum can be 0 by chance.
        as_large = np.sum(by_chance >= (share - _TOLERANCE) * (by_chance + noise_by_chance))
        f = share / max(1 - share, _TOLERANCE) * left / degrees
        effects.append(Effect(factor, degrees, share, f, float((1 + as_large) / (1 + n_permutations))))
    return Anova(len(runs), tuple(effects), left)


def draws(scored: Sequence[Scored], *, n_draws: int = N_DRAWS, seed: int = 0) -> Draws:
    """Return the metrics of seeded draws of whole models with replacement, which show their spread for unseen models.

    It is a cluster bootstrap: runs of one model have similar errors, so that draws of single runs would vary too little.

    Args:
        scored: All runs.
        n_draws, seed: Number and seed of the draws.
    """
    members: dict[str, list[int]] = {}
    for place, run in enumerate(scored):
        members.setdefault(run.group, []).append(place)
    models = [np.array(places) for places in members.values()]
    if not models:
        return Draws((), ())
    nan = math.nan  # used internally for draws without a result
    errors = np.array([abs(run.error) if run.error is not None and not run.said_out_of_memory else nan for run in scored])
    failures = np.array([nan if (failed := verdict(run).failed) is None else float(failed) for run in scored])
    random = np.random.default_rng(seed)
    mre, pef = [], []
    for _ in range(n_draws):
        rows = np.concatenate([models[index] for index in random.choice(len(models), len(models))])
        sizes, failed_rows = (values[rows][~np.isnan(values[rows])] for values in (errors, failures))
        if len(sizes):
            mre.append(float(np.median(sizes)))
        if len(failed_rows):
            pef.append(float(np.mean(failed_rows)))
    return Draws(tuple(mre), tuple(pef))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the ends of the central 95 % of `values`; None if there are none."""
    if not values:
        return None
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _columns(runs: Sequence[Scored]) -> dict[str, _Matrix]:
    """Return the columns of each factor that varies: categories as indicators, the batch as its logarithm."""
    columns: dict[str, _Matrix] = {}
    for factor, values in (
        ("model", [run.group for run in runs]),
        ("optimizer", [run.optimizer for run in runs]),
        ("gpu", [run.gpu for run in runs]),
    ):
        names = sorted(set(values))
        if 2 <= len(names) <= _MAX_LEVELS_SHARE * len(runs):
            columns[factor] = np.array([[float(value == name) for name in names[1:]] for value in values])
    batches = [run.batch_size for run in runs]
    if len(set(batches)) > 1 and min(batches) > 0:
        columns["batch"] = np.log(np.array(batches, dtype=np.float64))[:, None]
    return columns


def _basis(columns: list[_Matrix], n: int) -> _Matrix:
    """Return an orthonormal basis of the columns and a constant one, [n, rank]."""
    matrix = np.hstack([np.ones((n, 1)), *columns])
    left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    return left[:, sizes > _TOLERANCE * max(sizes.max(initial=0.0), 1.0)]


def _split(residuals: _Matrix, whole: _Matrix, others: _Matrix) -> tuple[_Matrix, _Matrix]:
    """Return, for each column, the sums of squares that `whole` explains beyond `others`, and that it leaves."""
    by_others, by_whole = (np.sum((basis.T @ residuals) ** 2, axis=0) for basis in (others, whole))
    return np.maximum(by_whole - by_others, 0.0), np.maximum(np.sum(residuals**2, axis=0) - by_whole, 0.0)
