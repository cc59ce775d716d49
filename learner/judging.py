"""What a correction says of measured runs, ready to be judged: with a given artifact, or fairly by cross-validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sklearn.model_selection import GroupKFold

from vramcast.errors import DatasetError
from vramcast.learner.evaluation.scored import Scored
from vramcast.learner.examples import Example
from vramcast.learner.model import Learned, Subject
from vramcast.learner.training import train
from vramcast.units import GIB

LEVELS: Final = (0.5, 0.9, 0.95, 0.99)  # spec: the quantiles of an estimate's JSON
OUTER_FOLDS: Final = 5  # arbitrary


def subject_of(example: Example) -> Subject:
    """Return the example as a job to correct."""
    return Subject(example.features, example.reserved, example.gpu, example.family)


def scored_of(
    example: Example, learned: Learned | None, levels: Sequence[float] = LEVELS, *, context_bytes: int | None = None,
    survives: bool | None = None,
) -> Scored | None:  # fmt: skip
    """Return the run with what `learned` says of it; None where its peak cannot be compared.

    The process peak is judged where it was measured, else the reserved one.

    Args:
        example: The run.
        learned: None judges the plain simulation, without bounds.
        levels: Of the bounds.
        context_bytes: Instead of the context which `learned` has for the run's stack.
        survives: Whether the job ran when capped at the estimate, where somebody tried.
    """
    context, beside = 0, example.context
    measured = example.measured_reserved
    if example.measured_process is not None:
        known = learned.contexts.get(example.stack) if learned else None
        if context_bytes is None and known is None:
            if measured is None:
                return None
        else:
            context = context_bytes if context_bytes is not None or known is None else known.size_bytes  # type: ignore[assignment]
            measured, beside = example.measured_process, 0
    if measured is None:
        return None
    subject = subject_of(example)
    card = round(example.features["card_gib"] * GIB) or None
    estimate = (learned.reserved(subject) if learned else example.reserved) + context
    bounds = {level: learned.bound(subject, level).size_bytes + context for level in levels} if learned else {}
    return Scored(
        example.id,
        example.group,
        example.family,
        example.gpu,
        example.optimizer,
        measured,
        estimate,
        bounds,
        card_bytes=card,
        ran_out_of_memory=example.censored,
        said_out_of_memory=card is not None and estimate + beside > card,
        survives=survives,
        censored=example.censored,
        batch_size=int(example.features.get("batch_size", 0)),
    )


def cross_validated(
    examples: Sequence[Example],
    parameters: Mapping[str, Any] | None = None,
    *,
    levels: Sequence[float] = LEVELS,
    folds: int = OUTER_FOLDS,
    seed: int = 0,
) -> list[Scored]:
    """Return every run as scored by a correction which was trained and calibrated without its model.

    The context of a stack is learned with the rest; a stack which only the tested runs have gives none, and they are left out.

    Raises:
        DatasetError: there are fewer than two models.
    """
    groups = [example.group for example in examples]
    if len(set(groups)) < 2:
        raise DatasetError(f"{len(set(groups))} models are too few to learn from some and test on others: measure more.")
    found: list[Scored] = []
    splitter = GroupKFold(min(folds, len(set(groups))), shuffle=True, random_state=seed)
    for known, new in splitter.split(examples, groups=groups):
        learned = train([examples[i] for i in known], parameters, folds=folds, seed=seed)
        found += [one for i in new if (one := scored_of(examples[i], learned, levels)) is not None]
    order = {example.id: place for place, example in enumerate(examples)}
    return sorted(found, key=lambda one: order[one.id])
