"""Sampling of long, repetitive histories: the choice of training runs, and the prediction of one run for all of its kind.

Runs are of one kind if an artifact sees the same in them: the job on its card, the model, the stack, which peaks were
measured. They differ only in their measurements. So each kind is estimated, corrected and bounded once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from vramcast.learner.evaluation.scored_run import Scored
from vramcast.learner.examples import Example

MOST: Final = 4_000  # arbitrary: number of training runs; training time grows with it, but accuracy hardly does


def kind_of(example: Example) -> Hashable:
    """Return a key of all facts of a run that an artifact and the tables use; examples of one job share their features."""
    return (
        id(example.features),
        *(example.group, example.family, example.stack, example.optimizer, example.ran_at, example.died_at),
        *(example.measured_reserved is None, example.measured_process is None, example.censored),
    )


def kinds_of(examples: Iterable[Example]) -> dict[Hashable, list[Example]]:
    """Return the examples of each kind, by id: their order does not depend on that of the history."""
    found: dict[Hashable, list[Example]] = {}
    for example in sorted(examples, key=lambda one: one.id):
        found.setdefault(kind_of(example), []).append(example)
    return found


def chosen(examples: Sequence[Example], most: int = MOST) -> list[Example]:
    """Return the training runs.

    Args:
        examples: All examples.
        most: Maximum number; 0: all. It is exceeded if there are more kinds.
    Returns:
        At most the same number for each model, because each has the same weight; a model's kinds in the proportions of the
        history, but at least one of each; a kind's runs at evenly spaced ranks of their measurements. Sorted by id.
    """
    kinds = list(kinds_of(examples).values())
    if not most or len(examples) <= most:
        return [example for kind in kinds for example in kind]
    sizes: dict[str, int] = {}
    for kind in kinds:
        sizes[kind[0].group] = sizes.get(kind[0].group, 0) + len(kind)
    per_model = _runs_per_model(kinds, sizes, most)
    return [example for kind in kinds for example in _spread(kind, _taken(len(kind), sizes[kind[0].group], per_model))]


def _runs_per_model(kinds: Sequence[Sequence[Example]], sizes: dict[str, int], most: int) -> int:
    """Return the number of runs to take of each model."""
    low, high = 1, max(sizes.values())
    while low < high:
        middle = (low + high + 1) // 2
        fits = sum(_taken(len(kind), sizes[kind[0].group], middle) for kind in kinds) <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _taken(kind: int, group: int, per_model: int) -> int:
    """Return the number of runs to take of a kind, whose model has `group` runs."""
    return kind if group <= per_model else max(1, kind * per_model // group)


def _spread(kind: Sequence[Example], count: int) -> list[Example]:
    """Return this many examples, each from the middle of an equal part of the measurements."""
    ordered = sorted(kind, key=lambda one: (one.measured_process or 0, one.measured_reserved or 0, one.id))
    return sorted((ordered[(2 * i + 1) * len(kind) // (2 * count)] for i in range(count)), key=lambda one: one.id)


def said_of_all(scored: Iterable[Scored], examples: Sequence[Example]) -> list[Scored]:
    """Return every run of the examples' kinds, scored by the prediction of one of its kind.

    Args:
        scored: At least one of each kind; runs of kinds that are missing here are left out.
        examples: All runs.
    """
    kinds = kinds_of(examples)
    by_id = {example.id: example for example in examples}
    found: dict[str, Scored] = {}
    for said in scored:
        asked = by_id[said.id]
        # All runs of a kind compare the same peak; a process takes more than its segments.
        is_process = asked.measured_process is not None and said.measured_bytes == asked.measured_process
        for example in kinds.pop(kind_of(asked), ()):
            measured = example.measured_process if is_process else example.measured_reserved
            assert measured is not None  # all of a kind have the same peaks
            found[example.id] = replace(said, id=example.id, measured_bytes=measured)
    return [found[id_] for id_ in sorted(found)]
