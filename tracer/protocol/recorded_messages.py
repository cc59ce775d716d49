"""What ranks said which ran before."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tape:
    """What ranks said, as bytes: only a process of the job itself opens them.

    Attributes:
        store: Keys of the store, and what was set.
        said: (kind, ranks of the group, number of the call, rank) and the pickled object.
        alike: The same by places in place of ranks: what is exchanged at the same place of another group of as many.
        pairs: Ranks of which one sends to the other: each may hold another part of the model.
    """

    store: dict[str, bytes] = field(default_factory=dict)
    said: dict[Hashable, bytes] = field(default_factory=dict)
    alike: dict[Hashable, bytes] = field(default_factory=dict)
    pairs: set[tuple[int, int]] = field(default_factory=set)

    def add(self, later: Tape) -> None:
        """Add what another rank said."""
        self.store |= later.store
        self.said |= later.said
        self.alike = later.alike | self.alike  # the first who said it: its group has all its ranks traced
        self.pairs |= later.pairs
