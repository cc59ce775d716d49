"""The trees of an artifact at work: an estimate needs neither xgboost nor scikit-learn, and not the second of their imports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vramcast.learner.conformal import Array


class Quantiles(Protocol):
    """A learner of quantiles, as far as an artifact needs it."""

    def predict_quantiles(self, X: Any) -> Array:
        """Return the quantiles of each row, n x levels, not decreasing along a row."""

    def get_params(self) -> dict[str, Any]:
        """Return its settings."""

    def to_json(self) -> bytes:
        """Return its trees in xgboost's own JSON."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees that `ResidualQuantiles` trained, read from xgboost's JSON; `trees.check` has accepted it.

    Attributes:
        values: Values of the JSON.
        parameters: Settings of the learner that trained them.
        conditions, children, features: Of each node: the split point or the leaf's value, the numbers of the left and the right
            child (0 for a leaf), and the feature.
        starts, outputs: Of each tree: its first node, and its quantile.
        base: The score to which the leaves add, by quantile.
    """

    values: Mapping[str, Any]
    parameters: Mapping[str, Any]
    conditions: npt.NDArray[np.float32]
    children: npt.NDArray[np.int64]
    features: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.int64]
    base: Array

    @classmethod
    def of(cls, values: Mapping[str, Any], parameters: Mapping[str, Any], n_levels: int) -> Forest:
        """Return the trees of a checked model."""
        model = values["learner"]["gradient_booster"]["model"]
        trees: Sequence[Mapping[str, Any]] = model["trees"]
        starts = np.cumsum([0, *(len(tree["left_children"]) for tree in trees)])[:-1]

        def joined(name: str) -> Array:
            return np.concatenate([np.zeros(0), *(np.asarray(tree[name], np.float64) for tree in trees)])

        of_tree = np.repeat(starts, [len(tree["left_children"]) for tree in trees])
        sides = np.stack([joined("left_children"), joined("right_children")], axis=1).astype(np.int64)
        children = np.where(sides < 0, 0, sides + of_tree[:, None])
        base = np.broadcast_to(np.asarray(json.loads(values["learner"]["learner_model_param"]["base_score"])), n_levels)
        outputs, features = np.array(model["tree_info"], np.int64), joined("split_indices").astype(np.int64)
        return cls(values, parameters, joined("split_conditions").astype(np.float32), children, features, starts, outputs, base)

    def predict_quantiles(self, X: Any) -> Array:
        """Return the quantiles of each row, n x levels, not decreasing along a row."""
        rows = np.asarray(X, np.float32)  # xgboost compares and adds in single precision
        nodes = np.broadcast_to(self.starts, (len(rows), len(self.starts)))
        while len(self.starts) and (inner := self.children[nodes, 0] > 0).any():
            sees = np.take_along_axis(rows, self.features[nodes], axis=1)
            nodes = np.where(inner, np.where(sees < self.conditions[nodes], *np.moveaxis(self.children[nodes], 2, 0)), nodes)
        found = np.tile(self.base.astype(np.float32), (len(rows), 1))
        for tree, output in enumerate(self.outputs.tolist()):  # in xgboost's order
            found[:, output] += self.conditions[nodes[:, tree]]
        return np.sort(found, axis=1).astype(np.float64)

    def get_params(self) -> dict[str, Any]:
        """Return the settings of the learner that trained them."""
        return dict(self.parameters)

    def to_json(self) -> bytes:
        """Return the trees in xgboost's own JSON."""
        return json.dumps(self.values).encode()
