"""A new artifact and the present one, each asked about the runs of the store, and what the gate says of that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from vramcast.adoption import gate, sample
from vramcast.adoption.artifact_store import Folder
from vramcast.core.errors import ArtifactError, DatasetError
from vramcast.core.plain import from_plain, json_value, to_plain
from vramcast.datasets.run import Run
from vramcast.learner import cross_validation, stacks
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.learner.examples import Example
from vramcast.learner.model import Learned
from vramcast.learner.stacks import StackContext

_COMPARED: Final = 20  # arbitrary: runs by which an artifact which was read again is compared with what was written
_ROUNDING: Final = 1e-4  # arbitrary: an artifact's numbers have seven digits
_LONGEST_S: Final = 10 * 365 * 24 * 3600  # arbitrary: a run which took longer has a wrong unit


@dataclass(frozen=True, slots=True)
class Figures:
    """How an artifact did when it was adopted, as its folder keeps it.

    Attributes:
        runs: Of the store, from which it was made.
        models: How its bounds did on each model.
    """

    runs: int = 0
    models: Mapping[str, gate.OfModel] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """A new artifact, and what it is judged by.

    Attributes:
        learned: The artifact.
        runs: Of the store, those which were seen first before others.
        examples: Those of them which can be used.
        chosen: Those which were learned from.
        scored: The chosen ones, by artifacts which have not seen their model.
    """

    learned: Learned
    runs: Sequence[Run]
    examples: Sequence[Example]
    chosen: Sequence[Example]
    scored: Sequence[Scored]

    @cached_property
    def own(self) -> list[Scored]:
        """All examples, by the artifact itself, which has seen them."""
        return said_of_all(self.learned, self.chosen, self.examples)

    @cached_property
    def everything(self) -> list[Scored]:
        """All examples, by artifacts which have not seen their model; promised is what the artifact promises."""
        own = {run.id: run for run in self.own}
        return [
            replace(run, promised=said.promised, calibrated_by=said.calibrated_by) if (said := own.get(run.id)) else run
            for run in sample.said_of_all(self.scored, self.examples)
        ]

    @cached_property
    def models(self) -> dict[str, gate.OfModel]:
        """How the bounds did on each model."""
        return gate.by_model(self.everything)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """How long the runs took, by id, where that is known."""
        took = {run.id: run.measurement.seconds for run in self.runs}
        return {id_: seconds for id_, seconds in took.items() if seconds and seconds <= _LONGEST_S}

    def plain(self) -> dict[str, Any]:
        """Return what the artifact which replaces this one will be compared with, as JSON values."""
        return to_plain(Figures(len(self.runs), self.models))  # type: ignore[no-any-return]


def said_of_all(
    learned: Learned,
    asked: Sequence[Example],
    examples: Sequence[Example],
    contexts: Mapping[str, StackContext] | None = None,
) -> list[Scored]:
    """Return the examples as an artifact says, which is asked once of each kind of those in `asked`."""
    one_each = {sample.kind_of(example): example for example in asked}
    said = (cross_validation.scored_of(example, learned, contexts=contexts) for example in one_each.values())
    return sample.said_of_all([one for one in said if one is not None], examples)


def verdict(judged: Judged, folder: Folder, against: Learned | None = None, *, replaces: bool = False) -> gate.Verdict:
    """Return why the new artifact is refused, and what was compared.

    Args:
        judged: The new one.
        folder: Where the present one is.
        against: Another one, which it may not be worse than either.
        replaces: Whether it may be worse than these.
    """
    promised = gate.by_model(gate.promised(judged.everything))
    reasons = gate.promise(promised)
    reasons += [f"on what it was made of {why}" for why in gate.promise(gate.by_model(gate.promised(judged.own)))]
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
            "known": gate.compared(known, before, "the runs which the present artifact was made of"),
            "new": gate.compared(*_on_new_models(judged, present, before), "models which are new to the present artifact"),
        }.items():
            figures[where] = compared.figures
            worse += compared.reasons
    if against is not None:
        compared = gate.compared(*_on_new_models(judged, against, ()), "all runs, beside --against,")
        figures["against"] = compared.figures
        worse += compared.reasons
    if replaces and worse:
        return gate.Verdict(reasons, {**figures, "replaced_though": worse})
    return gate.Verdict([*reasons, *worse], figures)


def _on_new_models(
    judged: Judged, present: Learned, before: Collection[str]
) -> tuple[dict[str, gate.OfModel], dict[str, gate.OfModel]]:
    """Return how the new and the present artifact do on the runs of models which the present one has not seen."""
    fresh = [example for example in judged.chosen if example.group not in before]
    contexts = {**stacks.learn(judged.chosen), **present.contexts}
    theirs = said_of_all(present, fresh, judged.examples, contexts)
    measured = {run.id: run.measured_bytes for run in theirs}
    ours = [run for run in judged.everything if measured.get(run.id) == run.measured_bytes]  # the same peak, that is
    return gate.by_model(ours), gate.by_model(gate.only(theirs, {run.id for run in ours}))


def _of_present(folder: Folder) -> Figures:
    """Return how the present artifact did by its own cross-validation."""
    try:
        path = folder.judged(folder.present_digest() or "-")
        return from_plain(Figures, json_value(path.read_bytes(), f"'{path}'"))
    except (OSError, DatasetError):
        return Figures()


def damaged(folder: Folder, digest: str, judged: Judged) -> list[str]:
    """Return what is wrong with an artifact which was written: it is read again, and asked what it was asked before."""
    if not folder.is_whole(digest):
        return ["it was not written whole"]
    again = folder.kept(digest)
    for example in judged.chosen[:: max(len(judged.chosen) // _COMPARED, 1)]:
        one, other = cross_validation.scored_of(example, judged.learned), cross_validation.scored_of(example, again)
        if one is None or other is None:
            if one is not other:
                return ["it does not know what it knew before it was written"]
            continue
        for level, size_bytes in one.bounds.items():
            if not abs(other.bounds[level] - size_bytes) <= _ROUNDING * size_bytes:
                return [f"its bound at {level:g} for {example.id[:60]} changed when it was written"]
    return []
