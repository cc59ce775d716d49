"""Tests of the order of recorded segments under the cards' policies."""

from __future__ import annotations

from benchmarks.simulator.addresses import order_of, report
from vramcast.core.units import MIB
from vramcast.tracer.format.trace import Action, Trace

LINUX = 0x7F0000000000


def history(*events: tuple[int, int]) -> Trace:
    """Return a history of segments: (address, MiB); a negative size frees."""
    return Trace.build(
        {
            "action": [Action.SEGMENT_ALLOC if mib > 0 else Action.SEGMENT_FREE for _, mib in events],
            "size_bytes": [abs(mib) * MIB for _, mib in events],
            "block": [-1] * len(events),
            "address": [address for address, _ in events],
        }
    )


def test_recognizes_linux_order_from_above() -> None:
    places = [(LINUX - 32 * n * MIB, 20) for n in range(5)]
    order = order_of(history(*places, (places[1][0], -20), (LINUX - 32 * MIB, 24)))
    assert order is not None
    assert (order.system, order.segments, order.pairs) == ("Linux", 6, 1 + 2 + 3 + 4 + 4)
    assert order.right["linux"] == 14 > 2 * order.right["windows"]


def test_recognizes_windows_order_from_below() -> None:
    order = order_of(history(*((0x500000000 + 20 * n * MIB, 20) for n in range(4))))
    assert order is not None
    assert (order.system, order.right) == ("Windows", {"linux": 0, "windows": 6})
    assert "| all 1 | Windows | 4 | 6 | 0.0 % | 100.0 % |" in report([order])


def test_finds_no_order_in_few_segments() -> None:
    assert order_of(history((LINUX, 20), (LINUX - 32 * MIB, 20))) is None
