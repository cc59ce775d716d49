"""Learners of runs between two ends: the change of the loss on unseen models, against no trees.

    python -m benchmarks.repeats.edge_learners [--seed 0]

An edge of timm gives a residual two ends (`learner/intervals.py`). Three learners see them: quantile trees of the places that
Turnbull's estimate gives, XGBoost's accelerated failure time (`survival:aft`), and trees of a pinball loss that is zero between
the ends. The ends of an edge follow from the card and the batch. So the control is what the card and sizes alone explain: a
gain that they have too is knowledge of the ends, not of the job. Only convolutions have trees; the loss is that of the gate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import xgboost
from scipy import stats

from benchmarks.accuracy.shipped import permissive
from benchmarks.tables import table
from vramcast.learner import gate, stacks, training
from vramcast.learner.conformal import LEVELS, Array
from vramcast.learner.model import family_name
from vramcast.learner.residual import ResidualQuantiles
from vramcast.learner.table import ExampleTable, folds_of, table_of
from vramcast.learner.traits import CONVOLUTION

Fit: TypeAlias = Callable[
    [ExampleTable, Any, Any, Sequence[int], int], Array
]  # table, learn, test, columns, seed: quantiles of test
_OF_THE_CARD: Final = {"near_capacity", "card_gib", "compute_capability", "sm_count", "on_card_share", "on_card_dies"}
_SIZES: Final = {
    *("log_reserved", "log_allocated", "log_activations", "batch_size", "log_batch_size", "log_input_elements"),
    *("log_workspace_largest", "log_segments"),
}
_ROUNDS: Final = 150  # arbitrary: as `ResidualQuantiles`
_SIGMA: Final = 0.03  # arbitrary: scale of a residual in the failure time model
_STRETCH: Final = 20.0  # arbitrary: residuals of hundredths become tenths, the size of a tree's step
_SOFT: Final = 0.2  # arbitrary: stretched residuals next to an end in which the gradient rises
_MARGIN: Final = 60.0  # arbitrary: of logarithms; exp stays finite


def _settings(seed: int) -> dict[str, Any]:
    return {"max_depth": 4, "learning_rate": 0.1, "min_child_weight": 3.0, "seed": seed, "nthread": 1, "tree_method": "hist"}


def _data(of: ExampleTable, rows: Any, columns: Sequence[int]) -> xgboost.DMatrix:
    weights = of.weights[rows]
    return xgboost.DMatrix(of.X[rows][:, columns], weight=weights * len(rows) / weights.sum())


def places(of: ExampleTable, rows: Any, new: Any, columns: Sequence[int], seed: int) -> Array:
    """Return the quantiles of trees that learn each residual at its place."""
    learner = ResidualQuantiles(random_state=seed).fit(of.X[rows][:, columns], of.y[rows], sample_weight=of.weights[rows])
    return learner.predict_quantiles(of.X[new][:, columns])


def failure_time(of: ExampleTable, rows: Any, new: Any, columns: Sequence[int], seed: int) -> Array:
    """Return the quantiles of an accelerated failure time model of exp(residual), with normal errors of a fixed scale."""
    center, data = float(np.median(of.y[rows])), _data(of, rows, columns)
    for name, ends in (("label_lower_bound", of.low), ("label_upper_bound", of.high)):
        scaled = np.exp(np.clip((ends[rows] - center) / _SIGMA, -_MARGIN, _MARGIN))
        data.set_float_info(name, np.where(np.isinf(ends[rows]), np.inf, scaled))
    law = {
        "objective": "survival:aft",
        "aft_loss_distribution": "normal",
        "aft_loss_distribution_scale": 1.0,
        "base_score": 1.0,
    }
    booster = xgboost.train({**_settings(seed), **law}, data, num_boost_round=_ROUNDS)
    found = booster.predict(_data(of, new, columns), output_margin=True) * _SIGMA + center
    return np.asarray(found[:, None] + _SIGMA * stats.norm.ppf(LEVELS), np.float64)


def interval_pinball(of: ExampleTable, rows: Any, new: Any, columns: Sequence[int], seed: int) -> Array:
    """Return the quantiles of trees that lower the pinball loss of each level outside the ends."""
    data, low, high = _data(of, rows, columns), of.low[rows] * _STRETCH, of.high[rows] * _STRETCH
    found = []
    for level in LEVELS:
        start = float(np.quantile(of.y[rows], level)) * _STRETCH

        def gradients(margin: Array, data: xgboost.DMatrix, level: float = level, start: float = start) -> tuple[Array, Array]:
            at, weight = margin + start, data.get_weight()
            below, above = np.clip((low - at) / _SOFT, 0, 1), np.clip((at - high) / _SOFT, 0, 1)
            return weight * ((1 - level) * above - level * below), weight

        settings = {**_settings(seed), "learning_rate": 0.3, "base_score": 0.0}
        booster = xgboost.train(settings, data, num_boost_round=_ROUNDS, obj=gradients)
        found.append((booster.predict(_data(of, new, columns), output_margin=True) + start) / _STRETCH)
    return np.sort(np.asarray(found, np.float64).T, axis=1)


LEARNERS: Final[dict[str, Fit]] = {"places": places, "failure time": failure_time, "interval pinball": interval_pinball}


def losses_of(of: ExampleTable, fit: Fit, columns: Sequence[int], seed: int) -> gate.Losses:
    """Return the losses of bounds of unseen models with the trees of a learner, which reads some of the features."""
    folds = folds_of(of, training.FOLDS, seed)
    quantiles: Array = np.zeros((len(of.y), len(LEVELS)))
    for known, new in folds:
        quantiles[new] = fit(of, known[of.has_features[known]], new, columns, seed)
    quantiles[~of.has_features | (of.segments != CONVOLUTION)] = 0.0
    return gate.bound_losses(of, quantiles, folds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    found = permissive()
    of = table_of(found, stacks.learn(found))
    tells = np.array([name in _OF_THE_CARD | _SIZES for name in of.names])
    kinds = {
        "all": np.full(len(tells), fill_value=True),
        "without card and sizes": ~tells,
        "card and sizes alone": tells,
    }
    lines = []
    for kind, chosen in kinds.items():
        for name, fit in LEARNERS.items():
            for family, gain in losses_of(of, fit, np.flatnonzero(chosen).tolist(), seed).gains(seed=seed).items():
                if CONVOLUTION in family and gain.models >= gate.FEWEST:
                    change, low, high = (f"{100 * value:+.1f} %" for value in (gain.change, gain.low, gain.high))
                    lines.append([kind, name, family_name(family), gain.models, change, f"{low} to {high}"])
    print(table(["features", "learner", "family", "models", "loss", "95 % of bootstraps"], lines, "lll"))


if __name__ == "__main__":
    main()
