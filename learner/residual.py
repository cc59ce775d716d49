"""Quantiles of the residual log(measured / simulated), by gradient boosting.

A scikit-learn regressor: `predict` returns the median, `predict_quantiles` all levels at once, which never cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from vramcast.learner.conformal import LEVELS, Array


@dataclass(repr=False, eq=False)
class ResidualQuantiles(RegressorMixin, BaseEstimator):  # type: ignore[misc,unused-ignore]
    """Conditional quantiles of a residual, with right-censored rows.

    A censored row only shows that its residual is at least y. There are two passes: the first learns without such rows; the
    second gives each the middle of the first pass's distribution above y (Efron's redistribution to the right, with a model
    instead of the sample).

    Args:
        levels: Ascending, in (0, 1); must include 0.5.
        n_estimators, max_depth, learning_rate, subsample, colsample_bytree, min_child_weight, reg_lambda: xgboost's.
        random_state: Seed; the same data and seed give the same trees.
        n_jobs: Number of threads.
        engine: `local`, or `dask`: the cluster of `dask_engine.cluster`.
    """

    levels: Sequence[float] = LEVELS
    n_estimators: int = 150
    max_depth: int = 4
    learning_rate: float = 0.1
    subsample: float = 0.8
    colsample_bytree: float = 1.0  # measured: `planted_gap --depthwise --seed 3` to 6; with 0.5, twice the error
    min_child_weight: float = 3.0
    reg_lambda: float = 1.0
    random_state: int = 0
    n_jobs: int = 1
    engine: str = "local"

    def fit(self, X: Any, y: Any, sample_weight: Any = None, censored: Any = None) -> ResidualQuantiles:
        """Learn from rows X (n x features) and residuals y (n).

        Args:
            X: Numbers.
            y: Residuals; of a censored row, its lower bound.
            sample_weight: Weight of each row; None: all equal.
            censored: Which rows are lower bounds; None: none.
        Raises:
            ValueError: Shapes differ, a value is not finite, no row has weight, or all rows are censored.
        """
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        weight = np.ones(len(y)) if sample_weight is None else check_array(sample_weight, ensure_2d=False, dtype=np.float64)
        if weight.shape != y.shape:
            raise ValueError(f"The sample weights have the shape {weight.shape}: give one for each of {len(y)} rows.")
        if not weight.any():
            raise ValueError("All sample weights are zero: give at least one row a weight above 0.")
        below = np.zeros(len(y), bool) if censored is None else np.asarray(censored, bool)
        if below.all():
            raise ValueError("All rows are censored: give at least one measured value.")
        self.booster_ = self._train(X[~below], y[~below], weight[~below])
        if below.any():
            filled = y.copy()
            filled[below] = self._above(X[below], y[below])
            self.booster_ = self._train(X, filled, weight)
        return self

    def _train(self, X: Array, y: Array, weight: Array) -> xgboost.Booster:
        names = ("max_depth", "learning_rate", "subsample", "colsample_bytree", "min_child_weight", "reg_lambda")
        parameters = {
            "objective": "reg:quantileerror",
            "quantile_alpha": np.asarray(self.levels, np.float64),
            "tree_method": "hist",
            **{name: getattr(self, name) for name in names},
            "seed": self.random_state,
            "nthread": self.n_jobs,
        }
        if self.engine == "dask":
            from vramcast.learner import dask_engine

            return dask_engine.train(parameters, X, y, weight, self.n_estimators)
        data = xgboost.QuantileDMatrix(X, y, weight=weight)
        return xgboost.train(parameters, data, num_boost_round=self.n_estimators)

    def _above(self, X: Array, least: Array) -> Array:
        """Return for each row the middle of the model's distribution above `least`."""
        levels = np.asarray(self.levels)
        quantiles = self.predict_quantiles(X)
        filled = np.empty(len(least))
        for row, (known, at_least) in enumerate(zip(quantiles, least, strict=True)):
            share = float(np.interp(at_least, known, levels, left=0.0, right=1.0)) if known[-1] > known[0] else 0.0
            filled[row] = max(float(np.interp((1 + share) / 2, levels, known)), at_least)
        return filled

    def predict_quantiles(self, X: Any) -> Array:
        """Return the quantiles of each row, n x levels, not decreasing along a row."""
        check_is_fitted(self, "booster_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        found = np.asarray(self.booster_.inplace_predict(X), np.float64).reshape(len(X), len(tuple(self.levels)))
        # Sorting is the rearrangement of Chernozhukov, Fernandez-Val and Galichon (Econometrica 2010), which never
        # increases the error.
        return np.sort(found, axis=1)

    def to_json(self) -> bytes:
        """Return the trees in xgboost's own JSON."""
        check_is_fitted(self, "booster_")
        return bytes(self.booster_.save_raw("json"))

    def predict(self, X: Any) -> Array:
        """Return the median of each row, length n."""
        return self.predict_quantiles(X)[:, tuple(self.levels).index(0.5)]
