"""The gains of an artifact's trees on models that they have not seen, as its card tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from vramcast.core.plain import Between, from_plain
from vramcast.core.units import INT64_MOST

Change: TypeAlias = Annotated[float, Between(-1, 1e6)]  # arbitrary: no loss grows a million times


@dataclass(frozen=True, slots=True)
class Gain:
    """The change of a loss by the trees on models that they have not seen, as a share of the loss without them.

    Attributes:
        models: Number of models.
        change: The change; -0.1 is a tenth less.
        low, high: Its range over 95 % of the bootstrap samples of models.
        is_used: Whether the trees are used there.
    """

    models: Annotated[int, Between(1, INT64_MOST)]
    change: Change
    low: Change
    high: Change
    is_used: bool


@dataclass(frozen=True, slots=True)
class Gains:
    """The gains of the trees of one peak.

    Attributes:
        bounds, points: The gains by family: of bounds at 0.9 and 0.95, and of points.
        importances: By family in which the trees are used, the features whose permutation on unseen models costs most, with
            the growth of the loss as a share.
    """

    bounds: Mapping[str, Gain] = field(default_factory=dict)
    points: Mapping[str, Gain] = field(default_factory=dict)
    importances: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)


def of_card(card: Mapping[str, Any]) -> dict[str, Gains]:
    """Return the gains in the facts of an artifact, by peak; none in one that is older than them.

    Raises:
        DatasetError: They are damaged.
    """
    return {
        peak: from_plain(Gains, one, f"card.trees.{peak}")
        for peak, one in from_plain(dict, card.get("trees", {}), "card.trees").items()
    }
