"""Rules fill empty fields of a history, and never overwrite others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.core.errors import DatasetError
from vramcast.datasets.histories.job_rules import Rule, join, read_rules
from vramcast.datasets.run import Measurement, Passport, Run, Workload


def run(name: str, **workload: object) -> Run:
    return Run(name, Workload(name, **workload), Passport("test"), Measurement("ok", process_bytes=1))  # type: ignore[arg-type]


def rules(tmp_path: Path, values: object) -> Path:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(values))
    return path


def test_first_matching_rule_fills_empty_fields(tmp_path: Path) -> None:
    path = rules(
        tmp_path,
        [
            {"name": "resnet-*", "target": "torchvision:resnet50", "batch": ["32x3x224x224"], "optimizer": "sgdm"},
            {"name": "*", "target": "torchvision:vgg16"},
        ],
    )
    runs = [run("resnet-7", optimizer="adam", user="ada", gpus=2), run("other")]
    (first, second), matched = join(runs, read_rules(path))
    assert first.workload == replace(runs[0].workload, target="torchvision:resnet50", batch=("32x3x224x224",))
    assert second.workload.target == "torchvision:vgg16"
    assert matched == 2


def test_matches_script_by_hash() -> None:
    measured = run("measured", script_sha256="ab", target="torchvision:vgg16").workload
    history = [run("one", script_sha256="ab"), run("two", script_sha256="cd"), run("three")]
    joined, matched = join(history, [Rule(measured, script_sha256="ab")])
    assert [one.workload.target for one in joined] == ["torchvision:vgg16", None, None]
    assert joined[1:] == history[1:]
    assert matched == 1


@pytest.mark.parametrize(
    "value",
    [{}, [{}], [{"name": "a", "script_sha256": "b"}], [{"name": "a", "colour": 1}], [{"name": "a", "batch": ["x"]}], [7]],
)
def test_wrong_rule_error_names_rule(value: object, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"rules\.json"):
        read_rules(rules(tmp_path, value))
