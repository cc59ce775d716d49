"""Comparison of the order of drivers' addresses in recorded histories with the policies of `simulator/card.py`.

    python -m benchmarks.simulator.addresses        # $VRAMCAST_SHARED/data: snapshots, public/snapshots

PyTorch takes the lowest of equally large free blocks, so the order of segments by address decides which one; addresses have no
other effect. Each history's segments are allocated in order on a card of each policy. For each two segments that are held at
the same time, the comparison counts whether the lower one in the record is lower on the card. The cards ignore segments from
before the record, and addresses used by libraries and the host. The address of the first segment identifies the system: on
Windows, addresses begin low.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

import numpy as np

from benchmarks.accuracy.runner import data_folder
from benchmarks.tables import table
from vramcast.core.errors import VramcastError
from vramcast.simulator.card import AddressPolicy, Card
from vramcast.tracer.format.snapshot import read_trace
from vramcast.tracer.format.trace import Action, Trace

_LOW: Final = 1 << 40  # measured: first segments at 0x5..., 0xb... on Windows, 0x7... on Linux
_FEW: Final = 4  # arbitrary: a history with fewer segments has no meaningful order


@dataclass(frozen=True, slots=True)
class Order:
    """Result for one history: number of pairs of segments, and number of pairs in the recorded order by policy."""

    name: str
    system: str
    segments: int
    pairs: int
    right: dict[AddressPolicy, int]


def order_of(trace: Trace, name: str = "") -> Order | None:
    """Return the order of a history's segments; None with too few, or expandable ones, which are pages of one range."""
    rows = np.flatnonzero((trace.action == Action.SEGMENT_ALLOC) | (trace.action == Action.SEGMENT_FREE)).tolist()
    events = [(int(trace.action[row]), int(trace.address[row]), int(trace.size_bytes[row])) for row in rows]
    asked = [address for action, address, _ in events if action == Action.SEGMENT_ALLOC]
    if len(asked) < _FEW:
        return None
    cards = {policy: Card(policy=policy) for policy in get_args(AddressPolicy)}
    right = dict.fromkeys(cards, 0)
    held: dict[int, dict[AddressPolicy, int]] = {}  # address in the record -> on each card
    pairs = 0
    for action, address, size_bytes in events:
        if action == Action.SEGMENT_FREE:
            for policy, place in held.pop(address, {}).items():
                cards[policy].release(place)
            continue
        places = {policy: card.reserve(size_bytes) for policy, card in cards.items()}
        pairs += len(held)
        for policy in cards:
            right[policy] += sum((other < address) == (there[policy] < places[policy]) for other, there in held.items())
        held[address] = places
    return Order(name, "Windows" if asked[0] < _LOW else "Linux", len(asked), pairs, right)


def histories(folder: Path) -> list[Order]:
    """Return the orders of all recorded histories below `folder`."""
    found = []
    for path in sorted(path for part in ("snapshots", "public/snapshots") for path in (folder / part).rglob("*.pickle*")):
        try:
            order = order_of(read_trace(path), path.name.partition(".")[0][-40:])
        except VramcastError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        if order is not None and order.pairs:
            found.append(order)
    return found


def report(orders: Sequence[Order]) -> str:
    """Return the table: a row per history, and the sums by system."""
    lines = [*sorted(orders, key=lambda order: (order.system, order.name))]
    for system in ("Linux", "Windows"):
        own = [order for order in orders if order.system == system]
        right = {policy: sum(order.right[policy] for order in own) for policy in get_args(AddressPolicy)}
        lines.append(
            Order(f"all {len(own)}", system, sum(order.segments for order in own), sum(order.pairs for order in own), right)
        )
    return table(
        ["history", "system", "segments", "pairs", *(f"by `{policy}`" for policy in get_args(AddressPolicy))],
        [
            [one.name, one.system, f"{one.segments:,}", f"{one.pairs:,}"]
            + [f"{100 * one.right[policy] / max(one.pairs, 1):.1f} %" for policy in get_args(AddressPolicy)]
            for one in lines
        ],
    )


if __name__ == "__main__":
    print(report(histories(data_folder())))
