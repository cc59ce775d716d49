"""The communicators and calls counted by the null NCCL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from vramcast.tracer.format.ledger import CallHandling, Entry

_MADE = "made"  # = call_names of csrc/comm.c: its creation, which does not count as a call


@dataclass(frozen=True, slots=True)
class Calls:
    """One communicator.

    Attributes:
        ranks: Number of its ranks.
        by_kind: Number of calls of each kind; empty if it was created and never used.
    """

    ranks: int
    by_kind: Mapping[str, int]


def calls_in(ledger: Iterable[Entry]) -> tuple[Calls, ...]:
    """Return the communicators of a ledger, in order of creation; damaged entries are skipped."""
    found: dict[int, tuple[int, dict[str, int]]] = {}
    for entry in ledger:
        if entry.kind is not CallHandling.COMMUNICATOR:
            continue
        number, ranks, _, call = _parts(entry)
        _, by_kind = found.setdefault(number, (ranks, {}))
        if call != _MADE:
            by_kind[call] = entry.hits
    return tuple(Calls(ranks, dict(sorted(by_kind.items()))) for _, (ranks, by_kind) in sorted(found.items()))


def sized(ledger: Iterable[Entry], sizes: Mapping[int, int]) -> list[Entry]:
    """Return a ledger in which parts of communicators have the sizes that PyTorch gave them.

    Args:
        ledger: A ledger in which a part has its parent's size, because NCCL knows only this rank's color.
        sizes: Number of ranks of each color. A missing one keeps its parent's size, which is no smaller.
    """
    entries = []
    for one in ledger:
        if one.kind is CallHandling.COMMUNICATOR:
            number, _, color, call = _parts(one)
            if color in sizes:
                one = replace(one, name=f"{number}/{sizes[color]}/{color}/{call}")
        entries.append(one)
    return entries


def _parts(entry: Entry) -> tuple[int, int, int, str]:
    """Return number, ranks, color and call of an entry; the ledger may come from an untrusted file."""
    try:
        number, ranks, color, call = entry.name.split("/")
        return int(number), max(int(ranks), 1), int(color), call
    except ValueError:
        return -1, 1, -1, _MADE
