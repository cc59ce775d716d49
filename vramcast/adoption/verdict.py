"""Evaluation of a new artifact and the current one on the runs of the store, and the gate's decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from vramcast.adoption import gate, sample, shipped_artifact
from vramcast.adoption.artifact_store import Folder
from vramcast.adoption.shipped_artifact import ArtifactComparison
from vramcast.core.errors import ArtifactError, DatasetError
from vramcast.core.plain import from_plain, json_value, to_plain
from vramcast.datasets.run import Run
from vramcast.learner import cross_validation, stacks
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.learner.examples import Example
from vramcast.learner.model import LearnedModel, Subject
from vramcast.learner.stacks import StackContext

_COMPARED: Final = 20  # arbitrary: runs that compare an artifact read back from disk with the written one
_ROUNDING: Final = 1e-4  # arbitrary: an artifact's numbers have seven digits
_LONGEST_S: Final = 10 * 365 * 24 * 3600  # arbitrary: a longer run has a wrong unit


@dataclass(frozen=True, slots=True)
class Figures:
    """The metrics of an artifact at its adoption, as stored in its folder.

    Attributes:
        runs: Runs of the store that it was made from.
        models: Performance of its bounds on each model.
    """

    runs: int = 0
    models: Mapping[str, gate.OfModel] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A new artifact, and the data to evaluate it.

    Attributes:
        learned: The artifact.
        runs: Runs of the store, ordered by when they were first seen.
        examples: The runs that can be used.
        chosen: The training runs.
        scored: The training runs, scored by artifacts that have not seen their model.
    """

    learned: LearnedModel
    runs: Sequence[Run]
    examples: Sequence[Example]
    chosen: Sequence[Example]
    scored: Sequence[Scored]

    @cached_property
    def own(self) -> list[Scored]:
        """All examples, scored by the artifact itself, which has seen them."""
        return said_of_all(self.learned, self.chosen, self.examples)

    @cached_property
    def everything(self) -> list[Scored]:
        """All examples, scored by artifacts that have not seen their model; guarantees are those of the artifact."""
        own = {run.id: run for run in self.own}
        return [
            replace(run, promised=said.promised, calibrated_by=said.calibrated_by) if (said := own.get(run.id)) else run
            for run in sample.said_of_all(self.scored, self.examples)
        ]

    @cached_property
    def models(self) -> dict[str, gate.OfModel]:
        """The performance of the bounds on each model."""
        return gate.by_model(self.everything)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Known durations of the runs, by id."""
        took = {run.id: run.measurement.seconds for run in self.runs}
        return {id_: seconds for id_, seconds in took.items() if seconds and seconds <= _LONGEST_S}

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics that a later artifact will be compared with, as JSON values."""
        return to_plain(Figures(len(self.runs), self.models))  # type: ignore[no-any-return]


def said_of_all(
    learned: LearnedModel,
    asked: Sequence[Example],
    examples: Sequence[Example],
    contexts: Mapping[str, StackContext] | None = None,
) -> list[Scored]:
    """Return the examples scored by an artifact, which is evaluated once for each kind in `asked`."""
    one_each = {sample.kind_of(example): example for example in asked}
    said = (cross_validation.scored_of(example, learned, contexts=contexts) for example in one_each.values())
    return sample.said_of_all([one for one in said if one is not None], examples)


def verdict(judged: Candidate, folder: Folder, against: LearnedModel | None = None) -> gate.GateDecision:
    """Return the reasons to reject the new artifact, and the compared metrics.

    Args:
        judged: The new artifact.
        folder: Folder of the current artifact.
        against: Another artifact that the new one must not be worse than.
    """
    promised = gate.by_model(gate.promised(judged.everything))
    reasons = gate.promise(promised)
    reasons += [f"on the runs it was made from {why}" for why in gate.promise(gate.by_model(gate.promised(judged.own)))]
    figures = {
        "models": len(judged.models),
        "coverage": gate.coverage(judged.models),
        "coverage_of_promises": gate.coverage(promised),
    }
    worse: list[str] = []
    try:
        present = folder.present()
    except ArtifactError as error:
        figures["present"], present = f"cannot be read: {error}", None
    else:
        figures |= {"present": "there is none"} if present is None else {}
    if present is not None:
        kept = _of_present(folder)
        before = kept.models
        known = gate.by_model(gate.only(judged.everything, {run.id for run in judged.runs[: kept.runs]}))
        worse += gate.narrower(known if before else judged.models, before)
        for where, compared in {
            "known": gate.compared(known, before, "the runs that the current artifact was made from"),
            "new": gate.compared(*_on_new_models(judged, present, before), "models that are new to the current artifact"),
        }.items():
            figures[where] = compared.figures
            worse += compared.reasons
    if against is not None:
        compared = gate.compared(*_on_new_models(judged, against, ()), "all runs (for --against)")
        figures["against"] = compared.figures
        worse += compared.reasons
    return gate.GateDecision(reasons, figures, worse)


def against_shipped(judged: Candidate) -> ArtifactComparison:
    """Return the comparison of the new artifact with the shipped one; an empty one if nothing can be compared."""
    try:
        shipped = shipped_artifact.load()
    except ArtifactError:
        return ArtifactComparison()
    covered = [example for example in judged.chosen if shipped_artifact.is_covered(shipped, example)]
    contexts = {**stacks.learn(judged.chosen), **shipped.contexts}
    theirs = said_of_all(shipped, covered, judged.examples, contexts)
    by_id = {example.id: example for example in judged.examples}
    like = [(judged.learned.models_like(one), shipped.models_like(one)) for one in map(Subject.of, covered)]
    return shipped_artifact.compared(judged.everything, shipped_artifact.as_estimated(theirs, by_id, contexts, shipped), like)


def _on_new_models(
    judged: Candidate, present: LearnedModel, before: Collection[str]
) -> tuple[dict[str, gate.OfModel], dict[str, gate.OfModel]]:
    """Return the performance of the new and the current artifact on runs of models that the current one has not seen."""
    fresh = [example for example in judged.chosen if example.group not in before]
    contexts = {**stacks.learn(judged.chosen), **present.contexts}
    theirs = said_of_all(present, fresh, judged.examples, contexts)
    measured = {run.id: run.measured_bytes for run in theirs}
    # only those that compare the same peak
    ours = [run for run in judged.everything if measured.get(run.id) == run.measured_bytes]
    return gate.by_model(ours), gate.by_model(gate.only(theirs, {run.id for run in ours}))


def _of_present(folder: Folder) -> Figures:
    """Return the performance of the current artifact in its own cross-validation."""
    try:
        path = folder.judged(folder.present_digest() or "-")
        return from_plain(Figures, json_value(path.read_bytes(), f"'{path}'"))
    except (OSError, DatasetError):
        return Figures()


def damaged(folder: Folder, digest: str, judged: Candidate) -> list[str]:
    """Return the defects of a written artifact, which is read back and evaluated again."""
    if not folder.is_whole(digest):
        return ["it was not written completely"]
    again = folder.kept(digest)
    for example in judged.chosen[:: max(len(judged.chosen) // _COMPARED, 1)]:
        one, other = cross_validation.scored_of(example, judged.learned), cross_validation.scored_of(example, again)
        if one is None or other is None:
            if one is not other:
                return ["the set of runs that it can score changed when it was written"]
            continue
        for level, size_bytes in one.bounds.items():
            if not abs(other.bounds[level] - size_bytes) <= _ROUNDING * size_bytes:
                return [f"its bound at {level:g} for {example.id[:60]} changed when it was written"]
    return []
