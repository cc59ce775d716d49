"""A trained correction as a folder of plain files: nothing in it is code, and reading it runs none.

artifact.json    what calibrates: levels, scores, contexts, ranges, versions
reserved.json    the trees of the reserved peak, in xgboost's own JSON; absent where nothing was learned
process.json     those of the process peak
CARD.md          for people: data, figures by group, limits

An artifact names the features which it reads, so that one made before a feature came is still of use.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import xgboost

from vramcast.errors import ArtifactError
from vramcast.learner.conformal import Calibration, Scores
from vramcast.learner.features import NAMES
from vramcast.learner.model import CONVOLUTION, MATMUL, PROCESS_NAMES, Head, Learned
from vramcast.learner.residual import ResidualQuantiles
from vramcast.learner.stacks import StackContext

FORMAT: Final = "vramcast-artifact"
SCHEMA: Final = 2  # 1: one head, of the reserved peak, with its trees in model.json
_DIGITS: Final = 7  # arbitrary: of a residual; a millionth of a job's memory
_MOST_BYTES: Final = 2**30  # arbitrary: a folder's file above is refused unread


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
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)
    except OSError as error:
        raise ArtifactError(f"'{folder}' cannot be written ({error.strerror}): choose another --out.") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _plain(learned: Learned) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "heads": {name: _plain_head(head) for name, head in learned.heads.items()},
        "contexts": {stack: asdict(context) for stack, context in learned.contexts.items()},
        "ranges": {name: list(ends) for name, ends in learned.ranges.items()},
        "card": learned.card,
    }


def _plain_head(head: Head) -> dict[str, Any]:
    return {
        "features": list(head.names),
        "learner": head.quantiles.get_params() if head.quantiles is not None else None,
        "levels": list(head.calibration.levels),
        "scores": [
            {
                key: {"values": [round(v, _DIGITS) for v in s.values], "weights": [round(w, _DIGITS) for w in s.weights]}
                for key, s in by_key.items()
            }
            for by_key in head.calibration.scores
        ],
        "helps": sorted(head.helps),
        "spares": sorted(head.spares),
    }


def load(folder: str | os.PathLike[str]) -> Learned:
    """Return the correction in a folder which `save` wrote, of this or an older version.

    Raises:
        ArtifactError: the folder is absent, damaged, newer, or made for other features.
    """
    path = Path(folder) / "artifact.json"
    content = _read(path)
    try:
        values = json.loads(content)
    except ValueError as error:
        raise ArtifactError(f"'{path}' is not JSON ({str(error)[:100]}): train the artifact again.") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ArtifactError(f"'{path}' is not an artifact of vramcast: give a folder which vramcast train wrote.")
    version = values.get("schema")
    if not isinstance(version, int) or version > SCHEMA:
        raise ArtifactError(f"'{path}' has schema {version}, this vramcast reads up to {SCHEMA}: install a newer one.")
    try:
        return _learned(values, Path(folder))
    except ArtifactError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"'{path}' is damaged ({type(error).__name__}: {error}): train the artifact again.") from None


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ArtifactError(f"'{path}' has more than {_MOST_BYTES} bytes: this is no artifact.")
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"'{path}' cannot be read ({error.strerror}): give a folder which vramcast train wrote.") from None


def _learned(values: Mapping[str, Any], folder: Path) -> Learned:
    heads = {"reserved": values} if values["schema"] == 1 else values["heads"]
    found = {
        str(name): _head(one, folder / (f"{name}.json" if values["schema"] > 1 else "model.json"))
        for name, one in heads.items()
    }
    ranges = {str(name): (float(low), float(high)) for name, (low, high) in values["ranges"].items()}
    if not set(found) <= {"reserved", "process"} or not set(ranges) <= set(NAMES):
        raise ValueError(f"heads are {sorted(found)}, ranges of {len(ranges)} features")
    return Learned(
        found["reserved"],
        found.get("process"),
        {str(stack): _context(one) for stack, one in values["contexts"].items()},
        ranges,
        dict(values["card"]),
    )


def _head(values: Mapping[str, Any], model: Path) -> Head:
    names = tuple(str(name) for name in values["features"])
    if unknown := [name for name in names if name not in PROCESS_NAMES]:
        raise ArtifactError(
            f"'{model.parent}' reads the feature '{unknown[0][:60]}', which this vramcast lacks: train it again."
        )
    helps = frozenset(values["helps"])
    if not helps <= {MATMUL, CONVOLUTION}:
        raise ValueError(f"helps is {sorted(helps)}")
    levels = tuple(float(level) for level in values["levels"])
    scores = tuple({str(key): _scores(one) for key, one in by_key.items()} for by_key in values["scores"])
    if len(scores) != len(levels) or 0.5 not in levels:
        raise ValueError(f"{len(levels)} levels and {len(scores)} sets of scores")
    learner = _learner(values["learner"], model, len(names)) if values["learner"] is not None else None
    spares = frozenset(str(key) for key in values.get("spares", ()))
    return Head(learner, Calibration(levels, scores), helps, names, spares)


def _learner(parameters: Mapping[str, Any], model: Path, n_features: int) -> ResidualQuantiles:
    learner = ResidualQuantiles(**parameters)
    learner.booster_ = xgboost.Booster()
    try:
        learner.booster_.load_model(bytearray(_read(model)))
    except xgboost.core.XGBoostError as error:
        raise ValueError(f"{model.name}: {str(error).splitlines()[0][:100]}") from None
    if learner.booster_.num_features() != n_features:
        raise ValueError(f"{model.name} is of {learner.booster_.num_features()} features")
    learner.n_features_in_ = n_features
    return learner


def _context(values: Mapping[str, Any]) -> StackContext:
    sizes = {name: int(values[name]) for name in ("size_bytes", "low_bytes", "high_bytes", "n")}
    apart = {str(key): _context(one) for key, one in values.get("by_libraries", {}).items()}
    return StackContext(**sizes, gpu=str(values.get("gpu", "")), by_libraries=apart)


def _scores(one: Mapping[str, Any]) -> Scores:
    values, weights = tuple(map(float, one["values"])), tuple(map(float, one["weights"]))
    if len(values) != len(weights) or list(values) != sorted(values) or any(weight <= 0 for weight in weights):
        raise ValueError("scores are not ascending, or their weights do not fit")
    return Scores(values, weights)
