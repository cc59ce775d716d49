"""Damaged artifacts: each kind of number replaced by every strange value, and trees that would crash or hang a reader."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

STRANGE: dict[str, Any] = {
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "-1": -1,
    "1e308": 1e308,
    "text": "5 or so",
    "none": None,
}
_FREE = (("card", "by"), ("card", "parameters"))  # facts that are not used in computations
Place: TypeAlias = tuple[Any, ...]


def places(values: Any) -> dict[str, Place]:
    """Return the places of numbers, one for each kind: first and last of a list, first of names that are not ours."""
    found: dict[str, Place] = {}

    def look(value: Any, place: Place, kind: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                known = kind.rsplit(".", 1)[-1] not in ("contexts", "by_libraries", "scores", "ranges", "by")
                look(inner, (*place, name), f"{kind}.{name}" if known else f"{kind}.*")
        elif isinstance(value, list) and value:
            for index in {0, len(value) - 1}:
                look(value[index], (*place, index), kind + ("[]" if index == 0 else "[-1]"))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.setdefault(kind.lstrip("."), place)

    look(values, (), "")
    return {kind: place for kind, place in found.items() if place[:2] not in _FREE}


def with_value(values: Any, place: Place, strange: Any) -> str:
    """Return the values as JSON with another value at a place."""
    inner = values
    for step in place[:-1]:
        inner = inner[step]
    before = inner[place[-1]]
    inner[place[-1]] = strange
    content = json.dumps(values)
    inner[place[-1]] = before
    return content


def numbers(folder: Path, file: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, file, content) of an artifact's file with one strange value in place of a number."""
    values = json.loads((folder / file).read_text())
    for kind, place in places(values).items():
        for name, strange in STRANGE.items():
            yield f"{kind} is {name}", file, with_value(values, place, strange)


def trees(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the same with invalid trees, and with files that are no such JSON."""
    values = json.loads((folder / "reserved.json").read_text())
    model = ("learner", "gradient_booster", "model")
    tree = (*model, "trees", 0)
    second = values["learner"]["gradient_booster"]["model"]["trees"][0]["right_children"][0]
    changes: dict[str, tuple[Place, Any]] = {
        "a child is its own parent": ((*tree, "left_children", 0), 0),
        "a child in another tree": ((*tree, "right_children", 0), 10_000),
        "a child before the first": ((*tree, "left_children", 0), -7),
        "two ways to a child": ((*tree, "left_children", 0), second),
        "a missing feature": ((*tree, "split_indices", 0), 10**6),
        "a column too short": ((*tree, "split_conditions"), [0.5]),
        "categories": ((*tree, "categories"), [1]),
        "a tree of a missing output": ((*model, "tree_info", 0), 99),
        "fewer trees than declared": ((*model, "trees"), []),
        "no nodes": ((*tree, "left_children"), []),
        "another booster": (("learner", "gradient_booster", "name"), "dart"),
        "another objective": (("learner", "objective", "name"), "reg:squarederror"),
        "a base score of infinity": (("learner", "learner_model_param", "base_score"), "[inf]"),
        "a base score of 1e30": (("learner", "learner_model_param", "base_score"), "[1e30,0,0,0,0,0]"),
        "an invalid number of features": (("learner", "learner_model_param", "num_feature"), "many"),
        "no version": (("version",), []),
    }  # fmt: skip
    for name, (place, value) in changes.items():
        yield name, "reserved.json", with_value(values, place, value)
    text = (folder / "reserved.json").read_text()
    yield "a duplicate name", "reserved.json", text.replace('"trees":', '"trees":[{}],"trees":', 1)[:-1]
    for file in ("artifact.json", "reserved.json"):
        for name, content in {
            "nested 100,000 deep": "[" * 100_000,
            "nested in objects": '{"a":' * 100_000,
            "nothing": "",
            "null": "null",
            "a list": "[]",
            "an integer of a million digits": "9" * 10**6,
            "binary": "{L\x00\x00",
            "torn": (folder / file).read_text()[:-40],
        }.items():
            yield name, file, content


def damaged(folder: Path, target: Path, file: str, content: str) -> Path:
    """Return a copy of an artifact with other content in one file."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    (target / file).write_text(content)
    return target


def must_refuse(name: str) -> bool:
    """Return whether the damage is distinguishable from valid content: -1 may be a score."""
    return not name.endswith(" is -1")
