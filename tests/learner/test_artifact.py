from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.hostile import damage
from vramcast.core.errors import ArtifactError
from vramcast.core.plain import json_value
from vramcast.learner import artifact, training, trees
from vramcast.learner.conformal import MOST_RESIDUAL, calibrate
from vramcast.learner.examples import Example
from vramcast.learner.model import RESERVED_NAMES, LearnedModel, Subject
from vramcast.learner.residual_tree import FEWEST_MODELS

MakeExamples = Callable[..., list[Example]]
QUICK = {"n_estimators": 20, "max_depth": 3, "learning_rate": 0.2}


@pytest.fixture(scope="module")
def learned(make_examples: MakeExamples) -> LearnedModel:
    return training.train(make_examples(300, process=True), QUICK, folds=3)


@pytest.fixture(scope="module")
def folder(learned: LearnedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifacts") / "one"
    artifact.save(learned, path, "# A card\n")
    return path


def test_predictions_survive_saving(learned: LearnedModel, folder: Path, make_examples: MakeExamples) -> None:
    again = artifact.load(folder)
    assert again.process_head is not None
    assert learned.process_head is not None
    assert again.reserved_head.bounds == learned.reserved_head.bounds
    assert again.process_head.names == learned.process_head.names
    assert (again.contexts, again.ranges) == (learned.contexts, learned.ranges)
    for example in make_examples(30, seed=5):
        subject = Subject.of(example)
        assert again.reserved(subject) == learned.reserved(subject)
        assert again.process(subject) == learned.process(subject)
        for peak in ("bounds", "process_bounds"):
            both = [getattr(one, peak)(subject, (0.5, 0.9, 0.97)) for one in (learned, again)]
            for before, after in zip(*both, strict=True):
                assert after.size_bytes == pytest.approx(before.size_bytes, rel=1e-6)
                assert after.key == before.key


def test_folder_has_reproducible_plain_files(learned: LearnedModel, folder: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["CARD.md", "artifact.json", "process.json", "reserved.json"]
    artifact.save(learned, tmp_path / "two", "# A card\n")
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_replaces_only_artifacts(learned: LearnedModel, tmp_path: Path) -> None:
    artifact.save(learned, tmp_path / "one")
    artifact.save(learned, tmp_path / "one", "new")
    assert (tmp_path / "one" / "CARD.md").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="is not empty and not an artifact"):
        artifact.save(learned, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not an artifact of vramcast"),
        ({"schema": 99}, "install a newer one"),
        ({"heads": {}}, "is damaged"),
        ({"contexts": {"one": {"size_bytes": "much"}}}, "is damaged"),
        ({"ranges": {"a": [1]}}, "is damaged"),
    ],
)
def test_rejects_wrong_artifact_with_reason(folder: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = copied(folder, tmp_path / "wrong")
    values = json.loads((path / "artifact.json").read_text())
    (path / "artifact.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(ArtifactError, match=message):
        artifact.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": ["x"]}, "reads the feature 'x'"),
        ({"levels": [0.9]}, "is damaged"),
        ({"helps": ["everything"]}, "is damaged"),
        ({"learner": {"no_such": 1}}, "is damaged"),
    ],
)
def test_rejects_wrong_head_with_reason(folder: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = copied(folder, tmp_path / "wrong")
    values = json.loads((path / "artifact.json").read_text())
    values["heads"]["reserved"].update(change)
    (path / "artifact.json").write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match=message):
        artifact.load(path)


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_rejects_older_artifact(folder: Path, tmp_path: Path, schema: int) -> None:
    path = copied(folder, tmp_path / "older")
    values = json.loads((path / "artifact.json").read_text())
    (path / "artifact.json").write_text(json.dumps({**values, "schema": schema}))
    with pytest.raises(ArtifactError, match=r"made by an older vramcast.*train it again"):
        artifact.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"models": [0]},
        {"reached": []},
        {"groups": {"cuts": None, "of_run": [1] * 150}},
        {"groups": {"cuts": {"trait": "plans", "value": 3, "yes": None, "no": None}, "of_run": [0] * 150}},
        {"groups": {"cuts": {"trait": "plans", "value": "other", "yes": None}, "of_run": [0] * 150}},
    ],
)
def test_rejects_inconsistent_calibration(folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    path = copied(folder, tmp_path / "wrong")
    values = json.loads((path / "artifact.json").read_text())
    values["heads"]["process"].update(change)
    (path / "artifact.json").write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match="is damaged"):
        artifact.load(path)


def test_rejects_endless_cuts(folder: Path, tmp_path: Path) -> None:
    path = copied(folder, tmp_path / "deep")
    values = json.loads((path / "artifact.json").read_text())
    cuts: dict[str, Any] | None = None
    for _ in range(100):
        cuts = {"trait": "a", "value": "b", "yes": cuts, "no": None}
    values["heads"]["process"]["groups"]["cuts"] = cuts
    (path / "artifact.json").write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match="nested more than 16 levels"):
        artifact.load(path)


def copied(folder: Path, path: Path) -> Path:
    shutil.copytree(folder, path)
    return path


def test_rejects_missing_or_torn_artifact(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        artifact.load(tmp_path)
    (tmp_path / "artifact.json").write_bytes((folder / "artifact.json").read_bytes())
    (tmp_path / "process.json").write_bytes((folder / "process.json").read_bytes())
    with pytest.raises(ArtifactError, match=r"reserved\.json' cannot be read"):
        artifact.load(tmp_path)
    (tmp_path / "reserved.json").write_bytes((folder / "reserved.json").read_bytes()[:-50])
    with pytest.raises(ArtifactError, match="is damaged"):
        artifact.load(tmp_path)
    (tmp_path / "artifact.json").write_text("{")
    with pytest.raises(ArtifactError, match="is not JSON"):
        artifact.load(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def small(make_examples: MakeExamples) -> LearnedModel:
    """Return a correction with few trees, of few nodes, and few scores in two groups."""
    learned = training.train(make_examples(120, process=True), {**QUICK, "n_estimators": 3, "max_depth": 2}, folds=2)
    assert learned.process_head is not None
    heads = []
    for head in (learned.reserved_head, learned.process_head):
        levels = head.calibration.levels
        residuals = np.array([0.0, 1.0] * FEWEST_MODELS)
        models = [str(i) for i in range(len(residuals))]
        traits = [{"plans": "other" if residual else "exact"} for residual in residuals.tolist()]
        calibration = calibrate(levels, np.zeros((len(residuals), len(levels))), residuals, models, traits)
        assert len(calibration.groups.leaves()) == 2
        heads.append(dataclasses.replace(head, calibration=calibration))
    some = dict(list(learned.ranges.items())[:2])
    return dataclasses.replace(learned, reserved_head=heads[0], process_head=heads[1], ranges=some)


@pytest.fixture(scope="module")
def small_folder(small: LearnedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifacts") / "small"
    artifact.save(small, path)
    return path


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_value_gives_artifact_or_own_error(
    small_folder: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    values = json.loads((small_folder / "artifact.json").read_text())
    where = data.draw(st.sampled_from((values, values["heads"], values["heads"]["reserved"])))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(json_values)
    path = copied(small_folder, tmp_path_factory.mktemp("strange") / "one")
    (path / "artifact.json").write_text(json.dumps(values))
    with contextlib.suppress(ArtifactError):
        assert isinstance(artifact.load(path), LearnedModel)


# ------------------------------------------------------------------------------------------------ strange numbers and trees
def bounds(learned: LearnedModel, subjects: list[Subject]) -> list[int]:
    levels = (0.5, 0.9, 0.99)
    return [
        bound.size_bytes
        for subject in subjects
        for bound in (*learned.bounds(subject, levels), *learned.process_bounds(subject, levels))
    ]


def test_rejects_strange_numbers_anywhere(small: LearnedModel, tmp_path: Path, make_examples: MakeExamples) -> None:
    assert small.process_head is not None
    without_trees = dataclasses.replace(
        small,
        reserved_head=dataclasses.replace(small.reserved_head, quantiles=None),
        process_head=dataclasses.replace(small.process_head, quantiles=None),
    )
    artifact.save(without_trees, tmp_path / "good")
    subjects = [Subject.of(one) for one in make_examples(4, seed=5)]
    lowest = bounds(artifact.load(tmp_path / "good"), subjects)
    tried = 0
    for name, file, content in damage.numbers(tmp_path / "good", "artifact.json"):
        (tmp_path / "good" / file).write_text(content)
        tried += 1
        try:
            again = artifact.load(tmp_path / "good")
        except ArtifactError:
            continue
        assert not damage.must_refuse(name), name
        assert all(a >= b for a, b in zip(bounds(again, subjects), lowest, strict=True)), name
    assert tried > 200


def test_rejects_invalid_trees_before_xgboost(small_folder: Path) -> None:
    folder = small_folder
    values = json.loads((folder / "reserved.json").read_text())
    levels = json.loads((folder / "artifact.json").read_text())["heads"]["reserved"]["levels"]

    def check(content: str) -> None:
        trees.check(json_value(content, "model"), n_features=len(RESERVED_NAMES), levels=levels, most=MOST_RESIDUAL)

    check(json.dumps(values))
    for name, file, content in (*damage.numbers(folder, "reserved.json"), *damage.trees(folder)):
        if file == "reserved.json" and damage.must_refuse(name) and not name.startswith(("version", "no version")):
            with pytest.raises((ValueError, KeyError, TypeError, AttributeError, IndexError)):  # noqa: PT012
                check(content)
                raise AssertionError(name)


@pytest.mark.parametrize(
    "damaged",
    [
        *("nested 100,000 deep", "nested in objects", "a child is its own parent", "a child in another tree", "no version"),
        *("an integer of a million digits", "a duplicate name"),
    ],
)
def test_rejects_damaged_artifact(folder: Path, tmp_path: Path, damaged: str) -> None:
    found = {name: (file, content) for name, file, content in damage.trees(folder)}
    with pytest.raises(ArtifactError):
        artifact.load(damage.damaged(folder, tmp_path / "one", *found[damaged]))


@pytest.mark.parametrize(
    ("name", "value"),
    [("levels", [0.5]), ("levels", "x"), ("n_estimators", -1), ("learning_rate", "much"), ("engine", 3), ("reg_lambda", True)],
)
def test_learner_has_settings_of_its_head(folder: Path, tmp_path: Path, name: str, value: Any) -> None:
    path = copied(folder, tmp_path / "wrong")
    values = json.loads((path / "artifact.json").read_text())
    values["heads"]["reserved"]["learner"][name] = value
    (path / "artifact.json").write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match="is damaged"):
        artifact.load(path)


def test_rejects_trees_with_huge_predictions(folder: Path, tmp_path: Path, make_examples: MakeExamples) -> None:
    """No leaf is out of range, but their sum is."""
    path = copied(folder, tmp_path / "wrong")
    values = json.loads((path / "reserved.json").read_text())
    for tree in values["learner"]["gradient_booster"]["model"]["trees"]:
        ends = tree["left_children"]
        tree["split_conditions"] = [20.0 if left == -1 else at for left, at in zip(ends, tree["split_conditions"], strict=True)]
    (path / "reserved.json").write_text(json.dumps(values))
    again = artifact.load(path)
    example = make_examples(2, seed=5)[1]
    with pytest.raises(ArtifactError, match="train it again"):
        again.bounds(Subject.of(example), [0.9])[0]


def test_never_writes_unreadable_artifact(learned: LearnedModel, tmp_path: Path) -> None:
    calibration = learned.reserved_head.calibration
    calibration = dataclasses.replace(calibration, scores=np.full_like(calibration.scores, 99.0))
    absurd = dataclasses.replace(learned, reserved_head=dataclasses.replace(learned.reserved_head, calibration=calibration))
    with pytest.raises(ArtifactError, match=r"is not written: .*a score has values outside.*peaks of all runs are correct"):
        artifact.save(absurd, tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_trees_answer_as_xgboost_does_without_it(folder: Path, learned: LearnedModel, make_examples: MakeExamples) -> None:
    trained, loaded = learned.reserved_head.quantiles, artifact.load(folder).reserved_head.quantiles
    assert trained is not None
    assert loaded is not None
    X = np.array([Subject.of(one).row(learned.reserved_head.names) for one in make_examples(40, seed=7)])
    assert np.array_equal(loaded.predict_quantiles(X), trained.predict_quantiles(X))
    assert json.loads(loaded.to_json()) == json.loads(trained.to_json())
    assert trained.get_params().keys() == artifact._SETTINGS
