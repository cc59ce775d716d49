"""The leaves of an operator's arguments: those of PyTorch's pytree, faster."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from vramcast.tracer.hooks.tensors import leaves_of, map_leaves, tensors_in  # noqa: E402
from vramcast.tracer.hooks.torch_api import tree_flatten, tree_map  # noqa: E402


class Pair(NamedTuple):
    first: Any
    second: Any


TENSOR = torch.zeros(2)
leaves = st.sampled_from([TENSOR, 1, 1.5, None, "text", torch.float32, ..., int, slice(1, 2), torch.Size([1, 2])])
trees = st.recursive(
    leaves,
    lambda tree: (
        st.lists(tree, max_size=3)
        | st.lists(tree, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), tree, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), tree, max_size=3).map(OrderedDict)
        | st.builds(Pair, tree, tree)
    ),
    max_leaves=12,
)


@given(trees)
def test_leaves_are_pytrees(tree: Any) -> None:
    assert list(map(id, leaves_of(tree))) == list(map(id, tree_flatten(tree)[0]))
    names = map_leaves(lambda leaf: str(type(leaf)), tree)
    assert names == tree_map(lambda leaf: str(type(leaf)), tree)
    # torch.Size is a pytree once torch.fx has registered it.
    assert type(names) is type(tree) or names == str(type(tree)) or isinstance(tree, torch.Size)


@given(trees)
def test_finds_each_tensor(tree: Any) -> None:
    assert tensors_in(tree, {"a": TENSOR}) == [leaf for leaf in tree_flatten((tree, TENSOR))[0] if leaf is TENSOR]
