"""The runs that the shipped artifact learns from, and how newly traced sets replace them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import shipped
from benchmarks.measured import measured_run
from vramcast.core.units import GIB
from vramcast.learner import artifact, examples, stacks
from vramcast.learner.examples import Example
from vramcast.learner.table import table_of
from vramcast.learner.traits import ALONE

TRAITS = {"operators": "convolution", "cudnns": "near"}


def example(**values: Any) -> Example:
    named: dict[str, Any] = {"reserved": 4 * GIB, "measured_reserved": 5 * GIB, "traits": TRAITS, **values}
    return Example("xmem 1 vgg", "org/VGG", "cnn", "rtx3060", "xmem", {}, allocated=3 * GIB, **named)


def test_every_run_has_a_licence_that_allows_it() -> None:
    allowed = {source.name for source in shipped.SOURCES}
    assert {one.id.split(" ")[0] for one in shipped.permissive()} <= allowed
    named = {source.of: source.licence for source in shipped.SOURCES}
    known = {name: one.licence for name, one in measured_run.sources().items()}
    assert {name: known[name] for name in set(named) & set(known)} == {name: named[name] for name in set(named) & set(known)}


def test_shipped_artifact_is_of_these_runs() -> None:
    card = artifact.load(shipped.ROOT / "models" / "default").card
    found = shipped.permissive()
    used = table_of(found, stacks.learn(found)).examples  # without those that hardly exceed their context
    assert (card["runs"], card["groups"]) == (len(used), len({one.group for one in used}))


@pytest.mark.parametrize(("cudnn", "reserved"), [("9.12.0.46", 6 * GIB), ("9.19.0.56", 4 * GIB)])
def test_run_under_two_cudnns_counts_also_with_the_newer_alone(cudnn: str, reserved: int) -> None:
    other = "9.19.0.56" if cudnn.startswith("9.12") else "9.12.0.46"
    both, alone = shipped.with_alone(example(larger=6 * GIB, cudnn=cudnn, other_cudnn=other))
    assert (both.larger, both.traits["cudnns"]) == (6 * GIB, "near")
    assert (alone.reserved, alone.larger, alone.cudnn) == (reserved, None, "9.19.0.56")
    assert alone.traits["cudnns"] == ALONE
    assert shipped.with_alone(example()) == [example()]


def test_one_network_is_one_model_in_all_sets_and_keeps_its_features() -> None:
    run = shipped.of_set(replace(example(), features={"log_reserved": 31.23456789}), "further")
    assert (run.id, run.group, run.stack) == ("further xmem 1 vgg", "vgg", "further")
    assert run.features == {"log_reserved": 31.2346}
    by_process = shipped.of_set(example(measured_reserved=None, measured_process=GIB), "milabench")
    assert by_process.stack == "milabench rtx3060"  # each card has its own context


def test_traced_set_replaces_its_runs_and_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "RUNS", tmp_path / "runs.jsonl")
    monkeypatch.setattr(shipped, "BUILD", tmp_path)
    monkeypatch.setattr(shipped.timm_edges, "RESULTS", tmp_path / "edges.jsonl")
    monkeypatch.setattr(shipped, "path_of", lambda name: tmp_path / f"examples-{name}.jsonl")
    kept = Example("golf 1", "golf script", "script", "", "golf", {}, GIB, GIB, measured_reserved=GIB)
    examples.append([kept, example(reserved=GIB)], tmp_path / "runs.jsonl")
    allocated = replace(example(), id="xmem 2 vgg", measured_reserved=None, measured_allocated=GIB)  # no evidence
    examples.append([example(), allocated], tmp_path / "examples-xmem.jsonl")
    assert [(one.stack, one.reserved) for one in shipped.collect()] == [("xmem", 4 * GIB), ("golf", GIB)]
    assert shipped.permissive() == shipped.collect()
