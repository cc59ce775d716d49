"""Conversion to and from JSON values, and the messages for wrong values."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import ArtifactError, DatasetError, UsageError
from vramcast.core.plain import Between, from_plain, json_value, to_plain


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    size: Annotated[int, Between(0, 64)] = 0
    share: Annotated[float, Between(0, 1)] | None = None
    mode: Literal["watch", "fill"] = "watch"
    is_new: bool = False
    folder: Path = Path("/run")
    ends: tuple[float, float] = (0.0, 1.0)
    parts: Mapping[str, Node] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


FULL = Node("a", 3, 0.5, "fill", True, ends=(1.0, 2.0), parts={"b": Node("b")}, facts={"any": [1, {"x": None}]})


def plain(node: Node) -> Any:
    """Return a node as JSON values; paths are text."""
    values = to_plain(node)
    del values["folder"]
    for part in values["parts"].values():
        del part["folder"]
    return values


def test_round_trip() -> None:
    assert from_plain(Node, json.loads(json.dumps(plain(FULL)))) == FULL
    assert from_plain(Node, {"name": "a"}) == Node("a")
    assert from_plain(Node, {"name": "a", "folder": "/tmp/x"}).folder == Path("/tmp/x")
    assert from_plain(tuple[float, ...], [1, 2]) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, "Node.name is 3: text of at most 100000 characters is expected."),
        ({"name": "\ud800"}, r"Node.name is '\ud800': text"),
        ({"size": 65}, "Node.size is 65: a number from 0 to 64 is expected."),
        ({"size": 1.0}, "Node.size is 1.0: a whole number below 2^63 is expected."),
        ({"size": True}, "Node.size is True: a whole number"),
        ({"share": 1.5}, "Node.share is 1.5: a number from 0 to 1 is expected."),
        ({"share": 10**400}, "a finite number is expected"),
        ({"mode": "all"}, "Node.mode is 'all': one of watch, fill is expected."),
        ({"is_new": 1}, "Node.is_new is 1: true or false is expected."),
        ({"folder": 1}, "Node.folder is 1: text"),
        ({"ends": [1]}, "Node.ends is [1]: a list of 2 is expected."),
        ({"ends": [1, "x"]}, "Node.ends[1] is 'x': a finite number is expected."),
        ({"parts": []}, "Node.parts is []: an object is expected."),
        ({"parts": {"b": {"name": 1}}}, "Node.parts['b'].name is 1: text"),
        ({"facts": 5}, "Node.facts is 5: an object is expected."),
        ({"modes": "fill"}, "Node has the field 'modes', which is unknown: did you mean 'mode'?"),
        ({"zzz": 1}, "Node has the field 'zzz', which is unknown: was it written by a newer vramcast?"),
    ],
)
def test_names_wrong_value_and_expected_type(change: dict[str, Any], said: str) -> None:
    with pytest.raises(DatasetError) as error:
        from_plain(Node, {"name": "a", **change})
    assert said in str(error.value)


def test_names_missing_field() -> None:
    with pytest.raises(UsageError, match=r"^'x\.toml' has no 'name': it is incomplete\.$"):
        from_plain(Node, {}, "'x.toml'", raises=UsageError)


def test_reads_recursive_type() -> None:
    values: dict[str, Any] = {"name": "a"}
    for _ in range(100_000):
        values = {"name": "a", "parts": {"b": values}}
    with pytest.raises(ArtifactError, match="nested too deep"):
        from_plain(Node, values, raises=ArtifactError)
    while values.get("parts"):  # otherwise freeing it would recurse
        values = values["parts"]["b"]


NO_JSON = [
    ("{", "not JSON"),
    ("NaN", "NaN is not a number"),
    ("[" * 10**5, "nested too deep"),
    ("9" * 10**4, ""),
    (b"\xff", ""),
]


@pytest.mark.parametrize(("text", "why"), NO_JSON, ids=["torn", "NaN", "deep", "large", "binary"])
def test_rejects_invalid_json(text: str | bytes, why: str) -> None:
    with pytest.raises(UsageError, match=rf"^'x' is (not JSON)?.*{why}"):
        json_value(text, "'x'", raises=UsageError)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(to_plain(FULL))), inner, max_size=4),
    max_leaves=8,
)


@given(json_values)
def test_any_value_parses_or_raises_own_error(value: Any) -> None:
    with contextlib.suppress(DatasetError):
        assert isinstance(from_plain(Node, value), Node)
