"""Validation of xgboost's JSON of a model before it is used: `forest.py` follows a child's number unchecked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.core.checks import number
from vramcast.core.plain import from_plain

_COLUMNS: Final = (
    *("base_weights", "default_left", "left_children", "loss_changes", "parents", "right_children"),
    *("split_conditions", "split_indices", "split_type", "sum_hessian"),
)
_CATEGORIES: Final = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_NO_PARENT: Final = 2**31 - 1  # spec: xgboost, RegTree::kInvalidNodeId
_MOST_NODES: Final = 2**24  # arbitrary
_LARGEST: Final = 1e30  # arbitrary: limit for weights and split points


def check(model: Any, *, n_features: int, levels: Sequence[float], most: float) -> None:
    """Reject any model that is not one of quantiles as trained by `ResidualQuantiles`.

    Args:
        model: Values of xgboost's JSON.
        n_features: Number of features that it reads.
        levels: Levels of the quantiles, one output for each.
        most: Limit for a leaf's value and for the base score.
    Raises:
        ValueError: The model is invalid; the message gives the reason.
    """
    learner = from_plain(dict, from_plain(dict, model, "the model")["learner"], "learner")
    if len(numbers(model["version"], "version", 0, _MOST_NODES, int)) != 3:
        raise ValueError("its version is not three numbers")
    shape = from_plain(dict, learner["learner_model_param"], "learner_model_param")
    objective = from_plain(dict, learner["objective"], "objective")
    booster = from_plain(dict, learner["gradient_booster"], "gradient_booster")
    if (objective["name"], booster["name"]) != ("reg:quantileerror", "gbtree"):
        raise ValueError("it is not a model of quantiles by trees")
    if [float(one) for one in _array(objective["quantile_loss_param"]["quantile_alpha"])] != list(levels):
        raise ValueError("its quantiles have other levels")
    if learner.get("feature_names") or learner.get("feature_types") or learner.get("attributes"):
        raise ValueError("its features have names or types")
    _said(shape["num_feature"], "num_feature", n_features)
    _said(shape["num_class"], "num_class", 0)
    _said(shape["num_target"], "num_target", len(levels))
    for one in _array(shape["base_score"]):
        number("base_score", one, least=-most, most=most)
    trees = from_plain(list, booster["model"]["trees"], "trees")
    sizes = from_plain(dict, booster["model"]["gbtree_model_param"], "gbtree_model_param")
    _said(sizes["num_trees"], "num_trees", len(trees))
    _said(sizes["num_parallel_tree"], "num_parallel_tree", 1)
    of_output = from_plain(list, booster["model"]["tree_info"], "tree_info")
    rounds = from_plain(list, booster["model"].get("iteration_indptr", [0, len(trees)]), "iteration_indptr")
    if len(of_output) != len(trees) or rounds != sorted(rounds) or rounds[:1] != [0] or rounds[-1:] != [len(trees)]:
        raise ValueError(f"it has {len(trees)} trees, but {len(of_output)} entries in tree_info")
    numbers(of_output, "tree_info", 0, len(levels) - 1, int)
    numbers(rounds, "iteration_indptr", 0, len(trees), int)
    if any(booster["model"].get("cats", {}).values()):
        raise ValueError("it has categories")
    if [from_plain(dict, tree, "a tree")["id"] for tree in trees] != list(range(len(trees))):
        raise ValueError("its trees are not numbered")
    if trees:
        _check_nodes(trees, n_features, most)


def _check_nodes(trees: Sequence[Mapping[str, Any]], n_features: int, most: float) -> None:
    """Check the nodes of all trees, as columns: a node's children are numbered within its tree."""
    counts = [len(from_plain(list, tree["left_children"], "left_children")) for tree in trees]
    for tree, n in zip(trees, counts, strict=True):
        if n == 0 or any(len(from_plain(list, tree[name], name)) != n for name in _COLUMNS):
            raise ValueError("the columns of a tree differ in length")
        if any(from_plain(list, tree[name], name) for name in _CATEGORIES):
            raise ValueError("a tree has categories")
        for name, value in (("num_nodes", n), ("num_deleted", 0), ("num_feature", n_features)):
            _said(tree["tree_param"][name], name, value)
        _said(tree["tree_param"]["size_leaf_vector"], "size_leaf_vector", 0, 1)
    column = {name: list(chain.from_iterable(tree[name] for tree in trees)) for name in _COLUMNS}
    for name in ("base_weights", "loss_changes", "sum_hessian"):
        numbers(column[name], name, -_LARGEST, _LARGEST)
    for name, high in (("default_left", 1), ("split_type", 0), ("split_indices", n_features - 1)):
        numbers(column[name], name, 0, high, int)
    values = numbers(column["split_conditions"], "split_conditions", -_LARGEST, _LARGEST)
    left, right = (numbers(column[side], side, -1, _MOST_NODES, int) for side in ("left_children", "right_children"))
    parents = numbers(column["parents"], "parents", 0, _NO_PARENT, int)
    is_leaf = left == -1
    if (is_leaf != (right == -1)).any():
        raise ValueError("a node has one child")
    if (np.abs(values[is_leaf]) > most).any():
        raise ValueError(f"a leaf is beyond {most:g}")
    of_tree = np.repeat(counts, counts)  # for each node, the size of its tree
    start = np.repeat(np.cumsum(counts) - counts, counts)  # for each node, the start of its tree
    own = np.arange(len(of_tree)) - start
    seen = [np.flatnonzero(own == 0)]
    for child in (left, right):
        inner = ~is_leaf
        # A child comes after its node, so that there are no cycles, and within its tree.
        if ((child <= own) | (child >= of_tree))[inner].any() or (parents[(start + child)[inner]] != own[inner]).any():
            raise ValueError("its nodes do not form a tree")
        seen.append((start + child)[inner])
    # Each node is a root or the child of exactly one node.
    if not np.array_equal(np.sort(np.concatenate(seen)), np.arange(len(of_tree))) or (parents[seen[0]] != _NO_PARENT).any():
        raise ValueError("its nodes do not form a tree")


def _said(value: Any, what: str, *expected: int) -> None:
    """Reject a number, which xgboost writes as text, that is not an expected one."""
    if value not in [str(one) for one in expected]:
        raise ValueError(f"{what} is {str(value)[:40]}, but must be {expected[-1]}")


def _array(value: Any) -> list[Any]:
    """Return numbers that xgboost writes as text: `[1E-1,5E-1]`, or a single one."""
    found = json.loads(from_plain(str, value, "an array"))
    return found if isinstance(found, list) else [found]


def numbers(values: Any, what: str, low: float, high: float, kind: type[float] | type[int] = float) -> npt.NDArray[Any]:
    """Return a large list of numbers between `low` and `high`; of kind int all must be whole, and the limits below 2^53.

    Raises:
        ValueError: The values are invalid; the message begins with `what`.
    """
    if not set(map(type, from_plain(list, values, what))) <= {int, kind}:
        raise ValueError(f"{what} has values other than {'whole ' if kind is int else ''}numbers")
    try:
        found = np.array(values, np.float64)
    except OverflowError:  # an integer of a thousand digits
        found = np.array([math.inf])
    if not ((low <= found) & (found <= high)).all():
        raise ValueError(f"{what} has values outside {low:g} to {high:g}")
    return found.astype(kind)
