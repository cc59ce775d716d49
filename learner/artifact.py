"""A trained correction as a folder of plain files, without code: reading it runs nothing.

    artifact.json    the calibration: levels, scores, contexts, ranges, versions
    reserved.json    the trees of the reserved peak, in xgboost's own JSON; absent if nothing was learned
    process.json     the trees of the process peak
    CARD.md          for people: data, figures by group, limits

An artifact names the features it reads, so that one made before a feature was added still works.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import numpy as np

from vramcast.core.checks import number, whole
from vramcast.core.errors import ArtifactError
from vramcast.core.plain import Between, from_plain, json_value, to_plain
from vramcast.core.units import INT64_MOST
from vramcast.learner import gains, trees
from vramcast.learner.conformal import MOST_RESIDUAL, Array, Calibration
from vramcast.learner.features import NAMES
from vramcast.learner.forest import Forest
from vramcast.learner.model import MATMUL, PROCESS_NAMES, Head, LearnedModel, Scope
from vramcast.learner.residual_tree import ALL_RUNS, ResidualGroup, Rows, names_of_parts
from vramcast.learner.stacks import StackContext
from vramcast.learner.traits import CONVOLUTION

FORMAT: Final = "vramcast-artifact"
SCHEMA: Final = 7
_OLDEST: Final = 4  # 1 to 3 were calibrated by card and family as named in rows, without traits
_MOST_ROWS: Final = 10_000_000  # arbitrary: number of runs that calibrate one artifact
_MOST_DEPTH: Final = 16  # arbitrary: depth of its groups
_DIGITS: Final = 7  # arbitrary: digits of a residual; a millionth of a job's memory
_MOST_BYTES: Final = 2**30  # arbitrary: a larger file in the folder is rejected unread
_LARGEST_FEATURE: Final = 2.0**64  # arbitrary: features are counts, shares and logarithms
_SETTINGS: Final = {
    *("levels", "n_estimators", "max_depth", "learning_rate", "subsample", "colsample_bytree", "min_child_weight"),
    *("reg_lambda", "random_state", "n_jobs", "engine"),
}  # of `ResidualQuantiles`
Share: TypeAlias = Annotated[float, Between(0, 1)]
Count: TypeAlias = Annotated[int, Between(0, INT64_MOST)]
Feature: TypeAlias = Annotated[float, Between(-_LARGEST_FEATURE, _LARGEST_FEATURE)]


_Residual: TypeAlias = Annotated[float, Between(-2 * MOST_RESIDUAL, 2 * MOST_RESIDUAL)]


@dataclass(frozen=True, slots=True)
class _Deciding:
    """By class and level of one peak: the run that sets a bound, its residual, and the bound's."""

    by_class: Mapping[str, Mapping[str, tuple[str, _Residual, _Residual]]]


def save(learned: LearnedModel, folder: str | os.PathLike[str], card_text: str = "") -> None:
    """Write an artifact; the folder appears complete or stays unchanged.

    Args:
        learned: The correction to write.
        folder: Target folder; an artifact in it is replaced.
        card_text: Text of CARD.md.
    Raises:
        ArtifactError: The folder is not an artifact, or cannot be written.
    """
    target = Path(folder)
    if target.exists() and not (target / "artifact.json").is_file() and any(target.iterdir()):
        raise ArtifactError(f"'{folder}' is not empty and not an artifact: choose another --out.")
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}.old")
    try:
        fresh.mkdir(parents=True)
        values = to_plain(_file_of(learned))
        (fresh / "artifact.json").write_text(json.dumps(values, separators=(",", ":"), sort_keys=True))
        for name, head in learned.heads.items():
            if head.quantiles is not None:
                (fresh / f"{name}.json").write_bytes(head.quantiles.to_json())
        (fresh / "CARD.md").write_text(card_text)
        _check_written(fresh, target)
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)
    except OSError as error:
        raise ArtifactError(f"'{folder}' cannot be written ({error.strerror}): choose another --out.") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _check_written(fresh: Path, target: Path) -> None:
    """Refuse to deploy an artifact that could not be read back."""
    try:
        load(fresh)
    except ArtifactError as error:
        reason = str(error).replace(f"{fresh}{os.sep}", "").removesuffix(": train the artifact again.")
        raise ArtifactError(f"'{target}' is not written: {reason}. Check that the peaks of all runs are correct.") from None


@dataclass(frozen=True, slots=True)
class _Cut:
    """A cut of a group of runs, and the cuts of its two parts; None: that part is not cut."""

    trait: str
    value: str
    yes: _Cut | None
    no: _Cut | None


@dataclass(frozen=True, slots=True)
class _Groups:
    """The cuts, and the finest group of each run."""

    cuts: _Cut | None
    of_run: Any


@dataclass(frozen=True, slots=True)
class _Head:
    """The part of artifact.json for one peak; lists with a number per run are `Any`, and checked later as arrays."""

    features: tuple[str, ...]
    learner: dict[str, Any] | None
    levels: tuple[Share, ...]
    scores: tuple[Any, ...]
    models: Any
    groups: _Groups
    reached: tuple[Any, ...]
    helps: tuple[str, ...]
    spares: tuple[str, ...]
    corrects: tuple[str, ...] | None = None  # None in schema 4, where the trees correct points wherever they set bounds
    exact: tuple[str, ...] = ()
    offset: Count = 0  # absent up to schema 5


@dataclass(frozen=True, slots=True)
class _File:
    """The content of artifact.json."""

    format: str
    schema: int
    heads: Mapping[str, _Head]
    contexts: Mapping[str, StackContext]
    ranges: Mapping[str, tuple[Feature, Feature]]
    n_models: Mapping[str, Mapping[str, Count]]
    card: dict[str, Any]


def _file_of(learned: LearnedModel) -> _File:
    heads = {name: _head_of(head) for name, head in learned.heads.items()}
    return _File(FORMAT, SCHEMA, heads, learned.contexts, learned.ranges, learned.n_models, learned.card)


def _head_of(head: Head) -> _Head:
    calibration = head.calibration
    of_run = np.zeros(len(calibration.models), np.int64)
    for place, leaf in enumerate(calibration.groups.leaves()):
        of_run[leaf.rows] = place
    return _Head(
        features=head.names,
        learner=head.quantiles.get_params() if head.quantiles is not None else None,
        levels=calibration.levels,
        scores=tuple(_rounded(column) for column in calibration.scores.T),
        models=calibration.models.tolist(),
        groups=_Groups(_cut_of(calibration.groups), of_run.tolist()),
        reached=tuple(_rounded(column) for column in calibration.reached.T),
        helps=tuple(sorted(head.bounds.families)),
        spares=tuple(sorted(head.bounds.excluded)),
        corrects=tuple(sorted(head.points.families)),
        exact=tuple(sorted(head.points.excluded)),
        offset=head.offset,
    )


def _cut_of(group: ResidualGroup) -> _Cut | None:
    if group.yes is None or group.no is None:
        return None
    return _Cut(group.trait, group.value, _cut_of(group.yes), _cut_of(group.no))


def _rounded(values: Array) -> list[float]:
    return [round(value, _DIGITS) for value in values.tolist()]


def load(folder: str | os.PathLike[str]) -> LearnedModel:
    """Return the correction in a folder that `save` wrote.

    Raises:
        ArtifactError: The folder is absent, damaged, of another schema, or made for other features.
    """
    path = Path(folder) / "artifact.json"
    content = _read(path)
    try:
        values = json_value(content, "artifact")
        _require_schema(values, path)
        return _learned(from_plain(_File, values, "artifact"), Path(folder))
    except ArtifactError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ArtifactError(
            f"'{path}' is damaged ({type(error).__name__}: {str(error)[:300]}): train the artifact again."
        ) from None


def _require_schema(values: Any, path: Path) -> None:
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ArtifactError(f"'{path}' is not an artifact of vramcast: give a folder written by vramcast learn.")
    version = whole("schema", values.get("schema"), least=1)
    if version > SCHEMA:
        raise ArtifactError(f"'{path}' has schema {version}, but this vramcast reads up to {SCHEMA}: install a newer one.")
    if version < _OLDEST:
        raise ArtifactError(
            f"'{path}' was made by an older vramcast (schema {version}), which did not record the classes of its jobs: "
            "train it again on its runs."
        )


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ArtifactError(
                f"'{path}' has more than {_MOST_BYTES} bytes and cannot be an artifact: give a folder "
                "written by vramcast learn."
            )
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"'{path}' cannot be read ({error.strerror}): give a folder written by vramcast learn.") from None


def _learned(file: _File, folder: Path) -> LearnedModel:
    if not {"reserved"} <= set(file.heads) <= {"reserved", "process"}:
        raise ValueError(f"heads are {sorted(file.heads)}")
    heads = {name: _head(one, folder / f"{name}.json") for name, one in file.heads.items()}
    # A feature unknown to this vramcast has no range here; if trees read it, the head is rejected.
    ranges = {name: ends for name, ends in file.ranges.items() if name in NAMES}
    if wrong := [name for name, (low, high) in ranges.items() if low > high]:
        raise ValueError(f"the lower end of the range of {wrong[0]} exceeds its upper end")
    _check_card(file.card)
    return LearnedModel(heads["reserved"], heads.get("process"), file.contexts, ranges, file.n_models, file.card)


def _check_card(card: Mapping[str, Any]) -> None:
    """Check the facts for CARD.md, which a later calibration writes again."""
    for name in ("runs", "groups", "censored", "folds", "seed"):
        whole(f"card.{name}", card[name], least=0)
    from_plain(dict, card["parameters"], "card.parameters")
    gains.of_card(card)
    for peak, by_class in from_plain(dict, card.get("decide", {}), "card.decide").items():
        from_plain(_Deciding, {"by_class": by_class}, f"card.decide.{peak}")
    json.dumps(card, allow_nan=False)  # further facts are passed on


def _head(head: _Head, model: Path) -> Head:
    if head.learner is not None and (unknown := [name for name in head.features if name not in PROCESS_NAMES]):
        raise ArtifactError(
            f"'{model.parent}' reads the feature '{unknown[0][:60]}', which this vramcast does not have: train it again."
        )
    levels = head.levels
    if list(levels) != sorted(set(levels)) or 0.5 not in levels or not 0 < levels[0] <= levels[-1] < 1:
        raise ValueError(f"levels are {levels}")
    learner = _learner(head.learner, model, len(head.features), levels) if head.learner is not None else None
    bounds = _scope(head.helps, head.spares)
    points = bounds if head.corrects is None else _scope(head.corrects, head.exact)
    return Head(learner, _calibration(head), bounds, points, head.features, head.offset)


def _scope(families: tuple[str, ...], excluded: tuple[str, ...]) -> Scope:
    if not {family.partition("|")[0] for family in families} <= {MATMUL, CONVOLUTION}:
        raise ValueError(f"families are {families}")
    return Scope(frozenset(families), frozenset(excluded))


def _calibration(head: _Head) -> Calibration:
    most = 2 * MOST_RESIDUAL  # bound on the difference of a residual and a quantile
    columns = [trees.numbers(one, "a score", -most, most) for one in head.scores]
    models = trees.numbers(head.models, "a model", 0, _MOST_ROWS, int)
    of_run = trees.numbers(head.groups.of_run, "a group", 0, 2**_MOST_DEPTH, int)
    reached = [trees.numbers(one, "a level", 0, 1) for one in head.reached]
    n_levels = len(head.levels)
    sizes = {len(models), len(of_run), *map(len, columns), *map(len, reached)}
    if not len(columns) == len(reached) == n_levels or len(sizes) > 1 or len(models) > _MOST_ROWS:
        raise ValueError(f"{n_levels} levels, {len(columns)} lists of scores, {len(reached)} of levels, {sizes} runs")
    groups = _group(head.groups.cuts, ALL_RUNS, of_run, models, itertools.count(), 0)
    if len(groups.rows) != len(models):
        raise ValueError("a run's group is not one that the cuts make")
    return Calibration(head.levels, np.stack(columns, axis=1), models, groups, np.stack(reached, axis=1))


def _group(cut: _Cut | None, name: str, of_run: Rows, models: Rows, leaves: Iterator[int], depth: int) -> ResidualGroup:
    """Return a group with its parts; leaves are numbered in the order of `ResidualGroup.leaves`."""
    if cut is None:
        rows = np.flatnonzero(of_run == next(leaves))
        return ResidualGroup(name, rows, len(np.unique(models[rows])))
    if depth == _MOST_DEPTH:
        raise ValueError(f"groups are nested more than {_MOST_DEPTH} levels deep")
    of_yes, of_no = names_of_parts(name, cut.trait, cut.value)
    yes = _group(cut.yes, of_yes, of_run, models, leaves, depth + 1)
    no = _group(cut.no, of_no, of_run, models, leaves, depth + 1)
    rows = np.sort(np.concatenate([yes.rows, no.rows]))
    return ResidualGroup(name, rows, len(np.unique(models[rows])), cut.trait, cut.value, yes, no)


def _learner(parameters: Mapping[str, Any], model: Path, n_features: int, levels: tuple[float, ...]) -> Forest:
    checked = _checked_parameters(parameters)
    if tuple(checked.get("levels", levels)) != levels:
        raise ValueError(f"the learner's levels are {checked['levels']}, its head's {levels}")
    content = _read(model)
    try:
        values = json_value(content, "the model")
        trees.check(values, n_features=n_features, levels=levels, most=MOST_RESIDUAL)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{model.name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}") from None
    return Forest.of(values, checked, len(levels))


def _checked_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learner's settings; the trees already exist, so only the levels matter, but all settings are checked."""
    if unknown := values.keys() - _SETTINGS:
        raise ValueError(f"the learner has the unknown setting '{min(unknown)[:60]}'")
    found = dict(values)
    for name, value in values.items():
        if name == "levels":
            found[name] = list(from_plain(tuple[Share, ...], value, name))
        elif name == "engine":
            from_plain(str, value, name)
        else:
            number(name, value, least=-1 if name == "n_jobs" else 0, most=2**32)  # -1: all cores
    return found
