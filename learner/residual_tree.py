"""Groups of runs with similar residuals: a small tree over the traits of jobs.

A cut tests whether a trait has a certain value. The first cuts are by the known causes of residuals, in a fixed order; the
others are found in the data, where one reduces the loss of the upper quantiles most. Both are made only if each side keeps
enough models, because few models show mostly chance. A trait that a job lacks counts as having no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.learner.traits import ALONE, Traits

FEWEST_MODELS: Final = 8  # arbitrary: on each side of a cut; the largest of this many residuals is near their 0.9 quantile
MOST_CUTS: Final = 3  # arbitrary: cuts above a leaf that were found in the data
# arbitrary: the order. Each cause is something the simulation does not know exactly: a library's choices (what cuDNN takes
# matters if convolutions are much of a job, and depthwise ones have kernels of PyTorch that a cuDNN may replace), the order of
# shapes, a compiler's choices, values, the timing of several streams. Rare large residuals of one cause would hide the others.
CAUSES: Final = (
    ("share", "much"),
    ("mode", "inference"),
    ("depthwise", "unqueried"),
    ("cudnns", ALONE),
    ("batches", "vary"),
    ("compiled", "yes"),
    ("values", "drawn"),
    ("ranks", "several"),
)
_FORMER: Final = (("operators", "convolution"),)  # of artifacts up to schema 5
FEWEST_OF_CAUSE: Final = 4  # arbitrary: fewer, because these cuts were not chosen by the data
_LEAST_GAIN: Final = 0.05  # arbitrary: share of a group's loss that a cut must remove
_LEVELS: Final = (0.75, 0.9, 0.97)  # arbitrary: the upper quantiles that bounds use
ALL_RUNS: Final = "all runs"

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ResidualGroup:
    """Runs that are calibrated together, and the two parts into which they are cut.

    Attributes:
        name: Name for readers; that of a part lists all cuts above it.
        rows: Rows of the calibration table, ascending.
        n_models: Number of models in them.
        trait, value: The cut; "" for a leaf.
        yes, no: The runs whose trait has the value, and the others.
    """

    name: str
    rows: Rows
    n_models: int
    trait: str = ""
    value: str = ""
    yes: ResidualGroup | None = None
    no: ResidualGroup | None = None

    def path(self, traits: Traits) -> tuple[ResidualGroup, ...]:
        """Return the groups of a job with these traits, from all runs to the finest."""
        part = self.yes if traits.get(self.trait, "") == self.value else self.no
        return (self,) if part is None else (self, *part.path(traits))

    @property
    def is_cut_by_cause(self) -> bool:
        """Return whether its cut is by a known cause of residuals."""
        return (self.trait, self.value) in CAUSES + _FORMER

    def of_class(self, traits: Traits) -> ResidualGroup:
        """Return the group of all jobs with the same causes: the finest one above the cuts found in the data."""
        return next(group for group in self.path(traits) if not group.is_cut_by_cause)

    def classes(self) -> tuple[ResidualGroup, ...]:
        """Return the groups that `of_class` returns."""
        if self.yes is None or self.no is None or not self.is_cut_by_cause:
            return (self,)
        return (*self.yes.classes(), *self.no.classes())

    def leaves(self) -> tuple[ResidualGroup, ...]:
        """Return the finest groups."""
        return (self,) if self.yes is None or self.no is None else (*self.yes.leaves(), *self.no.leaves())


def grown(residuals: Array, models: Rows, traits: Sequence[Traits]) -> ResidualGroup:
    """Return the tree of these runs.

    Args:
        residuals: Residual of each run; positive ones are under-estimates.
        models: Model of each run, as a number; the runs of one share its weight.
        traits: Traits of each run.
    """
    order = np.argsort(residuals, kind="stable")
    table = _Table(residuals[order], models[order], _columns([traits[row] for row in order.tolist()]))
    return _grow(table, order, np.arange(len(order)), ALL_RUNS, 0, CAUSES)


def names_of_parts(name: str, trait: str, value: str) -> tuple[str, str]:
    """Return the names of a group's two parts."""
    above = "" if name == ALL_RUNS else f"{name}, "
    return f"{above}{trait} {value}", f"{above}{trait} not {value}"


def in_words(name: str) -> str:
    """Return a group's name without the causes that its runs lack."""
    lacking = {names_of_parts(ALL_RUNS, *cause)[1] for cause in CAUSES}
    return ", ".join(part for part in name.split(", ") if part not in lacking) or "no known cause"


@dataclass(frozen=True, slots=True)
class _Table:
    """Runs by ascending residual; `columns` maps (trait, value) to the runs that have it."""

    residuals: Array
    models: Rows
    columns: dict[tuple[str, str], npt.NDArray[np.bool_]]

    def n_models(self, rows: Rows) -> int:
        return len(np.unique(self.models[rows]))

    def can_cut(self, rows: Rows, cut: tuple[str, str], fewest: int = FEWEST_MODELS) -> bool:
        """Return whether both sides of a cut keep that many models."""
        if cut not in self.columns:
            return False
        has = self.columns[cut][rows]
        return min(self.n_models(rows[has]), self.n_models(rows[~has])) >= fewest

    def loss(self, rows: Rows) -> float:
        """Return the sum over models of the quantile loss at the upper levels, each relative to the rows' own quantile."""
        weights, residuals = model_weights(self.models[rows]), self.residuals[rows]
        reached = np.cumsum(weights)
        total = 0.0
        for level in _LEVELS:
            at = residuals[min(int(np.searchsorted(reached, level * reached[-1] * (1 - 1e-12))), len(rows) - 1)]
            above = residuals - at
            total += float((weights * np.where(above > 0, level * above, (level - 1) * above)).sum())
        return total


def model_weights(models: npt.NDArray[Any]) -> Array:
    """Return the weight of each run: every model has weight 1, shared by its runs."""
    _, places, counts = np.unique(models, return_inverse=True, return_counts=True)
    weights: Array = 1.0 / counts[places]
    return weights


def _columns(traits: Sequence[Traits]) -> dict[tuple[str, str], npt.NDArray[np.bool_]]:
    pairs = sorted({pair for own in traits for pair in own.items()})
    return {(trait, value): np.array([own.get(trait, "") == value for own in traits]) for trait, value in pairs}


def _grow(table: _Table, order: Rows, rows: Rows, name: str, found: int, causes: Sequence[tuple[str, str]]) -> ResidualGroup:
    """Return the group of these rows; `found` counts the cuts above it found in the data, `causes` are not tried yet."""
    own = np.sort(order[rows])
    n_models = table.n_models(rows)
    place = next((place for place, cause in enumerate(causes) if table.can_cut(rows, cause, FEWEST_OF_CAUSE)), None)
    if place is not None:
        cut: tuple[str, str] | None = causes[place]
        causes = causes[place + 1 :]
    else:
        cut, causes, found = _best_cut(table, rows) if found < MOST_CUTS else None, (), found + 1
    if cut is None:
        return ResidualGroup(name, own, n_models)
    trait, value = cut
    has = table.columns[cut][rows]
    of_yes, of_no = names_of_parts(name, trait, value)
    yes = _grow(table, order, rows[has], of_yes, found, causes)
    no = _grow(table, order, rows[~has], of_no, found, causes)
    return ResidualGroup(name, own, n_models, trait, value, yes, no)


def _best_cut(table: _Table, rows: Rows) -> tuple[str, str] | None:
    """Return the cut that reduces the loss most; None if none reduces it enough."""
    if table.n_models(rows) < FEWEST_MODELS:
        return None
    whole = table.loss(rows)
    best, least = None, (1 - _LEAST_GAIN) * whole
    for cut, has_value in table.columns.items():
        has = has_value[rows]
        if table.can_cut(rows, cut) and (loss := table.loss(rows[has]) + table.loss(rows[~has])) < least:
            best, least = cut, loss
    return best
