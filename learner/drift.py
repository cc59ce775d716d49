"""Drift of an artifact: its predictions compared with the memory of new runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from vramcast.learner import cross_validation, stacks
from vramcast.learner.examples import Example
from vramcast.learner.model import LearnedModel
from vramcast.learner.table import subject_of

LEVELS: Final = (0.9, 0.95, 0.99)  # spec: the bounds of an estimate's JSON


def drift(learned: LearnedModel, examples: Sequence[Example]) -> dict[str, dict[str, Any]]:
    """Return by family, and for "all", the performance of an artifact on these runs.

    Args:
        learned: The artifact.
        examples: Runs that it was not trained on.
    Returns:
        family -> `runs`, `median_residual` (of measured / corrected - 1), `unlike` (share of runs outside the training
        data), `coverage` {level: share of runs below the bound}. Censored runs count only if they exceed the bound.
    """
    contexts = {**stacks.learn(examples), **learned.contexts}
    rows: dict[str, list[tuple[float, bool, dict[float, bool]]]] = {}
    for example in examples:
        one = cross_validation.scored_of(example, learned, LEVELS, contexts=contexts)
        if one is None:
            continue
        held = {level: one.measured_bytes <= bound for level, bound in one.bounds.items()}
        if example.censored and all(held.values()):
            continue
        unlike = learned.is_out_of_distribution(subject_of(example, contexts))
        row = (one.measured_bytes / one.estimated_bytes - 1, unlike, held)
        for name in (example.family, "all"):
            rows.setdefault(name, []).append(row)
    return {name: _summary(of) for name, of in sorted(rows.items())}


def _summary(rows: Sequence[tuple[float, bool, Mapping[float, bool]]]) -> dict[str, Any]:
    return {
        "runs": len(rows),
        "median_residual": float(np.median([residual for residual, _, _ in rows])),
        "unlike": sum(unlike for _, unlike, _ in rows) / len(rows),
        "coverage": {str(level): sum(held[level] for _, _, held in rows) / len(rows) for level in LEVELS},
    }


def context_changes(old: LearnedModel, new: LearnedModel) -> dict[str, tuple[int | None, int]]:
    """Return the old and the new context in bytes for each stack of `new`, where they differ."""
    found: dict[str, tuple[int | None, int]] = {}
    for stack, context in new.contexts.items():
        before = old.contexts[stack].size_bytes if stack in old.contexts else None
        if before != context.size_bytes:
            found[stack] = (before, context.size_bytes)
    return found
