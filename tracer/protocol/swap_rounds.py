"""The plan and the reports of the hooks on saved tensors, as plain data without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from vramcast.core.plain import Between
from vramcast.core.units import INT64_MOST

_Count = Annotated[int, Between(0, INT64_MOST)]


@dataclass(frozen=True, slots=True)
class SavedMove:
    """The copies of one storage.

    Attributes:
        saved: Its number in the round.
        leaves: Number of the call, pack or unpack, at which its block is dropped.
        returns: Number of the unpack call at which the copy back begins.
    """

    saved: _Count
    leaves: _Count
    returns: _Count


@dataclass(frozen=True, slots=True)
class SavedRound:
    """One forward and backward pass: the bytes of each storage that is saved, in order, and the moves."""

    size_bytes: tuple[_Count, ...]
    moves: tuple[SavedMove, ...] = ()


class SavedEvent(NamedTuple):
    """A call of a hook, for a recorder. `kept`: others hold a storage that the plan moves, so its block stays."""

    kind: Literal["pack", "unpack", "kept"]
    round: int
    saved: int
    size_bytes: int
    address: int
