"""Tables of examples as arrays, with one row for each measured peak, and their folds by model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import GroupKFold

from vramcast.core.errors import DatasetError
from vramcast.core.units import gib
from vramcast.learner import stacks, sum_quantile
from vramcast.learner.conformal import Array
from vramcast.learner.examples import Example
from vramcast.learner.intervals import placed
from vramcast.learner.model import PROCESS_NAMES, RESERVED_NAMES, Subject
from vramcast.learner.residual_tree import CAUSES
from vramcast.learner.scale import OFFSET_BYTES, residual_of
from vramcast.learner.stacks import StackContext
from vramcast.learner.traits import Traits

Folds: TypeAlias = list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
FEWEST: Final = 30  # arbitrary: models that are needed to learn about process peaks


@dataclass(frozen=True, slots=True)
class ExampleTable:
    """Examples of one peak as arrays; `scale` defines a row's residual, and `intervals` where one lies between two ends.

    X is zero in the rows without features: they can calibrate, but not train, a correction.
    """

    examples: tuple[Example, ...]
    subjects: tuple[Subject, ...]
    names: tuple[str, ...]
    X: Array
    has_features: npt.NDArray[np.bool_]
    y: Array
    low: Array
    high: Array
    measured: Array
    contexts: Array
    groups: npt.NDArray[np.str_]
    censored: npt.NDArray[np.bool_]
    segments: npt.NDArray[np.str_]
    weights: Array
    offset: int

    @property
    def can_teach(self) -> npt.NDArray[np.bool_]:
        """The rows from which trees may learn."""
        found: npt.NDArray[np.bool_] = self.has_features & ((self.low == self.high) | self.censored)
        return found


def subject_of(example: Example, contexts: Mapping[str, StackContext]) -> Subject:
    """Return the example as a job to correct, with the context of its stack if that is known."""
    subject = Subject.of(example)
    if (known := stacks.known_context(example, contexts)) is None:
        return subject
    beside = {"context": sum_quantile.uniform(known.high_bytes - known.size_bytes)}
    return replace(subject, context=known.size_bytes, beside=beside, is_measured=True)


def table_of(examples: Sequence[Example], contexts: Mapping[str, StackContext], offset: int = OFFSET_BYTES) -> ExampleTable:
    """Return the examples whose reserved peak is known, or follows from the process peak; each group has the same weight.

    Args:
        examples: The examples.
        contexts: Contexts by stack.
        offset: Of the residuals' scale, in bytes.
    Raises:
        DatasetError: There are none.
    """
    chosen = [(example, stacks.measured_reserved(example, contexts)) for example in examples]
    usable = [(example, measured, 0) for example, measured in chosen if measured is not None]
    if not usable:
        offsets = [one.measured_process - one.reserved for one in examples if one.measured_process is not None]
        low, middle, high = (gib(int(size)) for size in np.quantile(offsets or [0], (0.05, 0.5, 0.95)))
        raise DatasetError(
            f"No CUDA context follows from these runs: measured - estimated has the median {middle} and ranges from {low} to "
            f"{high} in {len(offsets)} runs, where one size of some 100 to 600 MiB is expected. Is the batch, the unit or the "
            "column of the peak wrong? If they are right, add runs of each card and software, or the reserved peak."
        )
    return _table(usable, contexts, RESERVED_NAMES, offset)


def process_table_of(
    examples: Sequence[Example], contexts: Mapping[str, StackContext], offset: int = OFFSET_BYTES
) -> ExampleTable | None:
    """Return the examples whose process peak was measured on a stack with a known context; None: there are too few."""
    usable = [
        (example, example.measured_process, context)
        for example in examples
        if example.measured_process is not None and (context := stacks.context_of(example, contexts)) is not None
    ]
    groups = {example.group for example, _, _ in usable if not example.censored}
    return _table(usable, contexts, PROCESS_NAMES, offset) if len(groups) >= FEWEST else None


def _table(
    usable: Sequence[tuple[Example, int, int]], contexts: Mapping[str, StackContext], names: tuple[str, ...], offset: int
) -> ExampleTable:
    """Return the table of (example, measured, context); residuals are relative to the base plus the context."""
    chosen = tuple(example for example, _, _ in usable)
    subjects = tuple(subject_of(example, contexts) for example in chosen)
    measured, beside = (np.array([one[place] for one in usable], np.float64) for place in (1, 2))
    base = np.array([subject.base for subject in subjects]) + beside
    counts = Counter(example.group for example in chosen)
    weights = np.array([1.0 / counts[example.group] for example in chosen])
    most = np.array([math.inf if one.at_most is None else one.at_most for one in chosen])
    is_open = np.array([one.censored and one.at_most is None for one in chosen])
    low = np.asarray(residual_of(measured, base, offset))
    high = np.where(is_open, math.inf, np.maximum(np.where(np.isinf(most), low, residual_of(most, base, offset)), low))
    return ExampleTable(
        chosen,
        subjects,
        names,
        np.array([subject.row(names) if subject.features else [0.0] * len(names) for subject in subjects]),
        np.array([bool(subject.features) for subject in subjects]),
        _placed(low, high, weights, [subject.traits for subject in subjects]),
        low,
        high,
        measured,
        beside,
        np.array([example.group for example in chosen]),
        is_open,
        np.array([subject.segment for subject in subjects]),
        weights,
        offset,
    )


def _placed(low: Array, high: Array, weights: Array, traits: Sequence[Traits]) -> Array:
    """Return the residual of each row; one between two ends is where those of its class are."""
    classes = [tuple(traits_of_row.get(trait) == value for trait, value in CAUSES) for traits_of_row in traits]
    found = low.copy()
    for own in sorted(set(classes)):
        rows = np.array([one == own for one in classes])
        found[rows] = placed(low[rows], high[rows], weights[rows])
    return found


def folds_of(table: ExampleTable, folds: int, seed: int) -> Folds:
    """Return (learn, test) rows; groups are assigned by size, in an order that the seed shuffles."""
    n_groups = len(set(table.groups.tolist()))
    if n_groups < 2:
        return []
    splitter = GroupKFold(min(folds, n_groups), shuffle=True, random_state=seed)
    return list(splitter.split(table.X, table.y, table.groups))


def n_models_by_trait(table: ExampleTable) -> dict[str, dict[str, int]]:
    """Return by trait and value the number of models that have a run with it."""
    seen: dict[str, dict[str, set[str]]] = {}
    for subject, group in zip(table.subjects, table.groups.tolist(), strict=True):
        for trait, value in subject.traits.items():
            seen.setdefault(trait, {}).setdefault(value, set()).add(group)
    return {trait: {value: len(models) for value, models in sorted(by.items())} for trait, by in sorted(seen.items())}
