"""Measured runs scored by a correction: by a given artifact, or by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sklearn.model_selection import GroupKFold

from vramcast.core.errors import DatasetError
from vramcast.core.units import GIB
from vramcast.learner import stacks
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.learner.examples import Example
from vramcast.learner.model import BoundAtLevel, LearnedModel
from vramcast.learner.stacks import StackContext
from vramcast.learner.table import subject_of
from vramcast.learner.training import train

LEVELS: Final = (0.5, 0.9, 0.95, 0.99)  # spec: the quantiles of an estimate's JSON
OUTER_FOLDS: Final = 5  # arbitrary


def scored_of(
    example: Example,
    learned: LearnedModel | None,
    levels: Sequence[float] = LEVELS,
    *,
    contexts: Mapping[str, StackContext] | None = None,
) -> Scored | None:
    """Return a run with the prediction of `learned`; None: its peak cannot be compared.

    The process peak is compared if it was measured, else the reserved peak.

    Args:
        example: The run.
        learned: The correction; None scores the plain simulation, without bounds.
        levels: Levels of the bounds.
        contexts: Replace the contexts of `learned`.
    """
    contexts = learned.contexts if learned is not None and contexts is None else contexts or {}
    context = stacks.context_of(example, contexts)
    is_process = example.measured_process is not None and context is not None
    measured = example.measured_process if is_process else example.measured_reserved
    if measured is None:
        return None
    subject = subject_of(example, contexts)
    card = example.card_bytes or round(example.features.get("card_gib", 0) * GIB) or None
    estimate = example.reserved + (subject.context if is_process else 0)
    bounds: dict[float, BoundAtLevel] = {}
    if learned is not None:
        estimate = learned.process(subject) if is_process else learned.reserved(subject)
        found = learned.process_bounds(subject, levels) if is_process else learned.bounds(subject, levels)
        bounds = dict(zip(levels, found, strict=True))
    beside = 0 if is_process else example.context
    capped_context = subject.context if is_process else 0  # caps apply to reserved memory
    return Scored(
        example.id,
        example.group,
        example.family,
        example.gpu,
        example.optimizer,
        measured,
        estimate,
        {level: bound.size_bytes for level, bound in bounds.items()},
        card_bytes=card,
        ran_out_of_memory=example.censored,
        said_out_of_memory=card is not None and estimate + beside > card,
        ran_at=None if example.ran_at is None else example.ran_at + capped_context,
        died_at=None if example.died_at is None else example.died_at + capped_context,
        is_emulated=example.is_emulated,
        censored=example.censored,
        batch_size=int(example.features.get("batch_size", 0)),
        calibrated_by=next((bound.key for bound in bounds.values()), ""),
        promised=frozenset(level for level, bound in bounds.items() if bound.is_promised),
    )


def cross_validated(
    examples: Sequence[Example],
    parameters: Mapping[str, Any] | None = None,
    *,
    levels: Sequence[float] = LEVELS,
    folds: int = OUTER_FOLDS,
    seed: int = 0,
    others: Sequence[Example] = (),
    learn: Callable[[Sequence[Example]], LearnedModel] | None = None,
) -> list[Scored]:
    """Return every run as scored by a correction that was trained and calibrated without its model.

    Args:
        examples: The runs to score, which also train the other folds.
        parameters: Parameters of the learner.
        levels: Levels of the bounds.
        folds: Number of parts into which the models are split.
        seed: Seed of the split and of the learner.
        others: Further training examples for each fold, without those of the models that it scores.
        learn: Makes the correction of a fold from its examples; default: training.

    The context of a stack is learned with the rest; runs on a stack that only the tested runs have are left out.

    Raises:
        DatasetError: There are fewer than two models.
    """
    groups = [example.group for example in examples]
    if len(set(groups)) < 2:
        raise DatasetError(f"{len(set(groups))} models are too few to train on some and test on others: measure more.")
    found: list[Scored] = []
    splitter = GroupKFold(min(folds, len(set(groups))), shuffle=True, random_state=seed)
    for known, new in splitter.split(examples, groups=groups):
        judged = {groups[i] for i in new}
        more = [example for example in others if example.group not in judged]
        taught = [*(examples[i] for i in known), *more]
        learned = learn(taught) if learn else train(taught, parameters, folds=folds, seed=seed)
        found += [one for i in new if (one := scored_of(examples[i], learned, levels)) is not None]
    order = {example.id: place for place, example in enumerate(examples)}
    return sorted(found, key=lambda one: order[one.id])
