"""A trained correction as a folder of plain files: nothing in it is code, and reading it runs none.

artifact.json    what calibrates: levels, scores, contexts, ranges, versions
reserved.json    the trees of the reserved peak, in xgboost's own JSON; absent where nothing was learned
process.json     those of the process peak
CARD.md          for people: data, figures by group, limits

An artifact names the features which it reads, so that one made before a feature came is still of use.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vramcast.core.errors import ArtifactError
from vramcast.learner import trees, validation
from vramcast.learner.conformal import MOST_RESIDUAL, Array, Calibration
from vramcast.learner.features import NAMES
from vramcast.learner.model import MATMUL, PROCESS_NAMES, Head, Learned
from vramcast.learner.residual_tree import ALL_RUNS, Group, Rows, names_of_parts
from vramcast.learner.stacks import StackContext
from vramcast.learner.traits import CONVOLUTION

if TYPE_CHECKING:
    from vramcast.learner.residual import ResidualQuantiles

FORMAT: Final = "vramcast-artifact"
SCHEMA: Final = 4  # 1 to 3 were calibrated by card and family as rows named them, and know nothing of traits
_MOST_ROWS: Final = 10_000_000  # arbitrary: runs which one artifact is calibrated on
_MOST_DEPTH: Final = 16  # arbitrary: of its groups
_DIGITS: Final = 7  # arbitrary: of a residual; a millionth of a job's memory
_MOST_BYTES: Final = 2**30  # arbitrary: a folder's file above is refused unread
_LARGEST_FEATURE: Final = 2.0**64  # arbitrary: features are counts, shares and logarithms
_LARGEST_BYTES: Final = 2**50  # arbitrary: of a context


def save(learned: Learned, folder: str | os.PathLike[str], card_text: str = "") -> None:
    """Write an artifact; the folder appears whole or stays as it was.

    Args:
        learned: What to keep.
        folder: Replaced when it is an artifact already.
        card_text: CARD.md.
    Raises:
        ArtifactError: the folder holds something else, or cannot be written.
    """
    target = Path(folder)
    if target.exists() and not (target / "artifact.json").is_file() and any(target.iterdir()):
        raise ArtifactError(f"'{folder}' holds something else than an artifact: choose another --out.")
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}.old")
    try:
        fresh.mkdir(parents=True)
        (fresh / "artifact.json").write_text(json.dumps(_plain(learned), indent=None, separators=(",", ":"), sort_keys=True))
        for name, head in learned.heads.items():
            if head.quantiles is not None:
                (fresh / f"{name}.json").write_bytes(bytes(head.quantiles.booster_.save_raw("json")))
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
    """Refuse to put in place what could not be read again."""
    try:
        load(fresh)
    except ArtifactError as error:
        reason = str(error).replace(f"{fresh}{os.sep}", "").removesuffix(": train the artifact again.")
        raise ArtifactError(f"'{target}' is not written: {reason}. Are the peaks of all runs true?") from None


def _plain(learned: Learned) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "heads": {name: _plain_head(head) for name, head in learned.heads.items()},
        "contexts": {stack: asdict(context) for stack, context in learned.contexts.items()},
        "ranges": {name: list(ends) for name, ends in learned.ranges.items()},
        "n_models": {trait: dict(by) for trait, by in learned.n_models.items()},
        "card": learned.card,
    }


def _plain_head(head: Head) -> dict[str, Any]:
    return {
        "features": list(head.names),
        "learner": head.quantiles.get_params() if head.quantiles is not None else None,
        **_plain_calibration(head.calibration),
        "helps": sorted(head.active_segments),
        "spares": sorted(head.excluded_families),
    }


def _plain_calibration(calibration: Calibration) -> dict[str, Any]:
    """Return it as JSON: each run's scores, model, finest group and what it reached; and the cuts."""
    leaves = calibration.groups.leaves()
    of_run = np.zeros(len(calibration.models), np.int64)
    for number, leaf in enumerate(leaves):
        of_run[leaf.rows] = number
    return {
        "levels": list(calibration.levels),
        "scores": [_rounded(column) for column in calibration.scores.T],
        "models": calibration.models.tolist(),
        "groups": {"cuts": _plain_cuts(calibration.groups), "of_run": of_run.tolist()},
        "reached": [_rounded(column) for column in calibration.reached.T],
    }


def _plain_cuts(group: Group) -> Any:
    """Return a group's cut with those of its two parts; None of a leaf."""
    if group.yes is None or group.no is None:
        return None
    return {"trait": group.trait, "value": group.value, "yes": _plain_cuts(group.yes), "no": _plain_cuts(group.no)}


def _rounded(values: Array) -> list[float]:
    return [round(value, _DIGITS) for value in values.tolist()]


def load(folder: str | os.PathLike[str]) -> Learned:
    """Return the correction in a folder which `save` wrote.

    Raises:
        ArtifactError: the folder is absent, damaged, of another schema, or made for other features.
    """
    path = Path(folder) / "artifact.json"
    content = _read(path)
    try:
        values = validation.parse(content)
    except ValueError as error:
        raise _wrong(path, f"is not JSON ({str(error)[:100]})") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ArtifactError(f"'{path}' is not an artifact of vramcast: give a folder which vramcast train wrote.")
    version = values.get("schema")
    if type(version) is int and version > SCHEMA:
        raise ArtifactError(f"'{path}' has schema {version}, this vramcast reads up to {SCHEMA}: install a newer one.")
    if type(version) is int and 1 <= version < SCHEMA:
        raise ArtifactError(
            f"'{path}' was made by an older vramcast (schema {version}), which did not note the class of its jobs: train it "
            "again on its runs."
        )
    try:
        validation.whole(version, "schema", SCHEMA, SCHEMA)
        return _learned(values, Path(folder))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _wrong(path, f"is damaged ({type(error).__name__}: {str(error)[:300]})") from None


def _wrong(path: Path, what: str) -> ArtifactError:
    return ArtifactError(f"'{path}' {what}: train the artifact again.")


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ArtifactError(f"'{path}' has more than {_MOST_BYTES} bytes: this is no artifact.")
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"'{path}' cannot be read ({error.strerror}): give a folder which vramcast train wrote.") from None


def _learned(values: Mapping[str, Any], folder: Path) -> Learned:
    heads = validation.named(values["heads"], "heads")
    if not {"reserved"} <= set(heads) <= {"reserved", "process"}:
        raise ValueError(f"heads are {sorted(heads)}")
    found = {name: _head(one, folder / f"{name}.json") for name, one in heads.items()}
    # A feature which this vramcast lacks has no range here; where trees read it, the head is refused.
    ranges = {name: _range(ends, name) for name, ends in values["ranges"].items()}
    ranges = {name: ends for name, ends in ranges.items() if name in NAMES}
    contexts = {stack: _context(one, of_stack=True) for stack, one in values["contexts"].items()}
    n_models = {trait: _counts(by, trait) for trait, by in validation.named(values["n_models"], "n_models").items()}
    return Learned(found["reserved"], found.get("process"), contexts, ranges, n_models, _card(values["card"]))


def _counts(values: Any, trait: str) -> dict[str, int]:
    return {
        value: validation.whole(n, f"models with this {trait}", 0, 2**63)
        for value, n in validation.named(values, trait).items()
    }


def _range(ends: Any, name: str) -> tuple[float, float]:
    low, high = (validation.number(end, f"the range of {name}", -_LARGEST_FEATURE, _LARGEST_FEATURE) for end in ends)
    if low > high:
        raise ValueError(f"the range of {name} is {low:g} to {high:g}")
    return low, high


def _card(values: Any) -> dict[str, Any]:
    """Return the facts for CARD.md, which whoever calibrates writes anew."""
    card = dict(validation.named(values, "card"))
    for name in ("runs", "groups", "censored", "folds", "seed"):
        validation.whole(card[name], f"card.{name}", 0, 2**63)
    validation.named(card["parameters"], "card.parameters")
    json.dumps(card, allow_nan=False)  # whatever else it has is told on
    return card


def _head(values: Any, model: Path) -> Head:
    values = validation.named(values, "a head")
    names = tuple(validation.texts(values["features"], "features"))
    if values["learner"] is not None and (unknown := [name for name in names if name not in PROCESS_NAMES]):
        raise ArtifactError(
            f"'{model.parent}' reads the feature '{unknown[0][:60]}', which this vramcast lacks: train it again."
        )
    active_segments = frozenset(validation.texts(values["helps"], "helps"))
    if not active_segments <= {MATMUL, CONVOLUTION}:
        raise ValueError(f"helps is {sorted(active_segments)}")
    levels = tuple(validation.number(level, "a level", 0, 1) for level in validation.listed(values["levels"], "levels"))
    if list(levels) != sorted(set(levels)) or 0.5 not in levels or not 0 < levels[0] <= levels[-1] < 1:
        raise ValueError(f"levels are {levels}")
    learner = _learner(values["learner"], model, len(names), levels) if values["learner"] is not None else None
    excluded_families = frozenset(validation.texts(values["spares"], "spares"))
    return Head(learner, _calibration(values, levels), active_segments, names, excluded_families)


def _calibration(values: Mapping[str, Any], levels: tuple[float, ...]) -> Calibration:
    most = 2 * MOST_RESIDUAL  # of a residual against a quantile
    columns = [validation.numbers(one, "a score", -most, most) for one in validation.listed(values["scores"], "scores")]
    models = validation.wholes(values["models"], "a model", 0, _MOST_ROWS)
    of_groups = validation.named(values["groups"], "groups")
    of_run = validation.wholes(of_groups["of_run"], "a group", 0, 2**_MOST_DEPTH)
    reached = [validation.numbers(one, "a level", 0, 1) for one in validation.listed(values["reached"], "reached")]
    sizes = {len(models), len(of_run), *map(len, columns), *map(len, reached)}
    if not len(columns) == len(reached) == len(levels) or len(sizes) > 1 or len(models) > _MOST_ROWS:
        raise ValueError(f"{len(levels)} levels, {len(columns)} lists of scores, {len(reached)} of levels, {sizes} runs")
    groups = _group(of_groups["cuts"], ALL_RUNS, of_run, models, itertools.count(), 0)
    if len(groups.rows) != len(models):
        raise ValueError("a run's group is none of those which the cuts make")
    return Calibration(levels, np.stack(columns, axis=1), models, groups, np.stack(reached, axis=1))


def _group(cut: Any, name: str, of_run: Rows, models: Rows, numbers: Iterator[int], depth: int) -> Group:
    """Return a group with its parts; leaves are numbered as `Group.leaves` lists them."""
    if cut is None:
        rows = np.flatnonzero(of_run == next(numbers))
        return Group(name, rows, len(np.unique(models[rows])))
    if depth == _MOST_DEPTH:
        raise ValueError(f"groups are cut more than {_MOST_DEPTH} times")
    cut = validation.named(cut, "a cut")
    trait, value = validation.text(cut["trait"], "a trait"), validation.text(cut["value"], "its value")
    of_yes, of_no = names_of_parts(name, trait, value)
    yes = _group(cut["yes"], of_yes, of_run, models, numbers, depth + 1)
    no = _group(cut["no"], of_no, of_run, models, numbers, depth + 1)
    rows = np.sort(np.concatenate([yes.rows, no.rows]))
    return Group(name, rows, len(np.unique(models[rows])), trait, value, yes, no)


def _learner(parameters: Any, model: Path, n_features: int, levels: tuple[float, ...]) -> ResidualQuantiles:
    import xgboost  # an artifact without trees needs neither it nor scikit-learn

    from vramcast.learner.residual import ResidualQuantiles

    learner = ResidualQuantiles(**_parameters(parameters))
    if tuple(learner.levels) != levels:
        raise ValueError(f"the learner's levels are {learner.levels}, its head's {levels}")
    try:
        values = validation.parse(_read(model))
        trees.check(values, n_features=n_features, levels=levels, most=MOST_RESIDUAL)
        learner.booster_ = xgboost.Booster()
        # What was checked, not the file: xgboost may read other things out of that (a name which stands twice, another format).
        learner.booster_.load_model(bytearray(json.dumps(values), "utf-8"))
    except (xgboost.core.XGBoostError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{model.name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}") from None
    learner.n_features_in_ = n_features
    return learner


def _parameters(values: Any) -> dict[str, Any]:
    """Return the learner's settings; its trees are grown, so that only the levels matter, but all must be what they are."""
    found = dict(validation.named(values, "learner"))
    for name, value in found.items():
        if name == "levels":
            found[name] = [validation.number(level, "a level", 0, 1) for level in validation.listed(value, "levels")]
        elif name == "engine":
            validation.text(value, name)
        else:
            validation.number(value, name, -1 if name == "n_jobs" else 0, 2**32)  # -1: all cores
    return found


def _context(values: Any, *, of_stack: bool = False) -> StackContext:
    values = validation.named(values, "a context")
    size, high = (validation.whole(values[name], name, 0, _LARGEST_BYTES) for name in ("size_bytes", "high_bytes"))
    low = validation.whole(
        values["low_bytes"], "low_bytes", -_LARGEST_BYTES, _LARGEST_BYTES
    )  # a difference of two measured peaks
    if not low <= size <= high:
        raise ValueError(f"a context is {size}, between {low} and {high}")
    n = validation.whole(values["n"], "n", 1, 2**63)
    by_libraries = validation.named(values.get("by_libraries", {}), "by_libraries")
    if by_libraries and not of_stack:
        raise ValueError("a context by libraries is taken apart again")
    apart = {key: _context(one) for key, one in by_libraries.items()}
    return StackContext(size, low, high, n, validation.text(values.get("gpu", ""), "gpu"), apart)
