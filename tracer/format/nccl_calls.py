"""What the null NCCL counted: communicators, and the calls on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from vramcast.tracer.format.ledger import Entered, Entry

_MADE = "made"  # = call_names of csrc/comm.c: it was made, which is no call


@dataclass(frozen=True, slots=True)
class Calls:
    """One communicator.

    Attributes:
        ranks: How many it has.
        by_kind: How often each kind of call was made on it; none: it was made, and never used.
    """

    ranks: int
    by_kind: Mapping[str, int]


def calls_in(ledger: Iterable[Entry]) -> tuple[Calls, ...]:
    """Return the communicators of a ledger, in the order in which they were made; an entry which is damaged is none."""
    found: dict[int, tuple[int, dict[str, int]]] = {}
    for entry in ledger:
        if entry.kind is not Entered.COMMUNICATOR:
            continue
        number, ranks, _, call = _parts(entry)
        _, by_kind = found.setdefault(number, (ranks, {}))
        if call != _MADE:
            by_kind[call] = entry.hits
    return tuple(Calls(ranks, dict(sorted(by_kind.items()))) for _, (ranks, by_kind) in sorted(found.items()))


def sized(ledger: Iterable[Entry], sizes: Mapping[int, int]) -> list[Entry]:
    """Return a ledger in which parts of communicators have the sizes which PyTorch gave them.

    Args:
        ledger: Where a part has its parent's size: NCCL knows the color of this rank alone.
        sizes: How many ranks have a color. One which is not there keeps its parent's size, which is no smaller.
    """
    entries = []
    for one in ledger:
        if one.kind is Entered.COMMUNICATOR:
            number, _, color, call = _parts(one)
            if color in sizes:
                one = replace(one, name=f"{number}/{sizes[color]}/{color}/{call}")
        entries.append(one)
    return entries


def _parts(entry: Entry) -> tuple[int, int, int, str]:
    """Return number, ranks, color and call of an entry; a ledger may come from a file which holds anything."""
    try:
        number, ranks, color, call = entry.name.split("/")
        return int(number), max(int(ranks), 1), int(color), call
    except ValueError:
        return -1, 1, -1, _MADE
