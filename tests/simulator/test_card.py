"""The card's memory and addresses."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.simulator.card import BASE, SPAN, UNLIMITED_BYTES, AddressPolicy, Card
from vramcast.simulator.rules import MIB

POLICIES: tuple[AddressPolicy, ...] = ("linux", "windows")


def test_rejects_unknown_policy() -> None:
    with pytest.raises(UsageError, match="Address policy 'random' is unknown: use one of linux, windows"):
        Card(policy=cast(AddressPolicy, "random"))


def test_counts_pages_and_context() -> None:
    card = Card(10 * MIB + 5, context_bytes=3 * MIB)
    assert (card.capacity_bytes, card.free_bytes) == (7 * MIB + 5, 7 * MIB + 5)
    assert card.malloc(3 * MIB) is not None  # two pages
    assert (card.used_bytes, card.free_bytes) == (4 * MIB, 3 * MIB + 5)
    assert card.malloc(2 * MIB + 1) is None  # would be two more
    assert card.malloc(2 * MIB) is not None
    assert card.malloc(1) is None
    assert (card.used_bytes, card.free_bytes) == (6 * MIB, MIB + 5)


def test_outside_memory_counts_in_bytes() -> None:
    card = Card(10 * MIB)
    assert card.take(3 * MIB + 1)
    assert not card.take(7 * MIB)
    assert (card.used_bytes, card.free_bytes) == (3 * MIB + 1, 7 * MIB - 1)
    assert card.malloc(8 * MIB) is None
    assert card.malloc(6 * MIB) is not None


def test_unlimited_card_is_never_full() -> None:
    card = Card(10 * MIB, context_bytes=MIB, limited=False)
    assert card.malloc(100 * MIB) is not None
    assert (card.capacity_bytes, card.free_bytes, card.total_bytes) == (UNLIMITED_BYTES, 0, 10 * MIB)


def _places(card: Card, steps: list[int]) -> list[int]:
    """Return the addresses that `card` assigns, in MiB from one end of all addresses; -N releases the N-th (from 1)."""
    base = BASE + (SPAN if card.policy == "linux" else 0)
    held: list[tuple[int, int]] = []
    for size in steps:
        if size < 0:
            card.free(*held[-size - 1])
        else:
            address = card.malloc(size * MIB)
            assert address is not None
            held.append((address, size * MIB))
    return [(address - base) // MIB for address, _ in held]


@pytest.mark.parametrize(
    ("policy", "steps", "places"),
    [
        ("windows", [4, 2, 6, -1, -2, 2, 4, 2], [0, 4, 6, 0, 2, 12]),
        # A chunk each, from above; 12 MiB remain in each, and the newest serves first.
        ("linux", [20, 20, 20, 2, 10, 12, 2], [-32, -64, -96, -76, -74, -44, -12]),
        ("linux", [40, 6, 6, 20], [-64, -24, -18, -96]),  # the size of several chunks makes one chunk
        # An empty chunk is released, and its addresses are the highest fit for the next one.
        ("linux", [20, 64, 20, -2, 40, 30], [-32, -96, -128, -96, -160]),
        ("linux", [20, 6, 6, -1, 20, -2, -3, 6], [-32, -12, -6, -32, -12]),
    ],
)
def test_policy_assigns_addresses(policy: AddressPolicy, steps: list[int], places: list[int]) -> None:
    assert _places(Card(policy=policy), steps) == places


@given(st.sampled_from(POLICIES), st.lists(st.tuples(st.booleans(), st.integers(1, 20 * MIB)), max_size=40))
def test_ranges_never_overlap_and_free_completely(policy: AddressPolicy, requests: list[tuple[bool, int]]) -> None:
    card = Card(200 * MIB, policy=policy)
    held: list[tuple[int, int]] = []
    for gives, number in requests:
        if gives and held:
            card.free(*held.pop(number % len(held)))
            continue
        address = card.malloc(number)
        pages_bytes = sum(-(-size // (2 * MIB)) * 2 * MIB for _, size in held)
        assert (address is None) == (pages_bytes + number > 200 * MIB // (2 * MIB) * 2 * MIB)
        if address is not None:
            assert address % (2 * MIB) == 0
            assert all(address + number <= other or other + size <= address for other, size in held)
            held.append((address, number))
    for address, size in held:
        card.free(address, size)
    assert (card.used_bytes, card.free_bytes) == (0, 200 * MIB)
    assert card.reserve(SPAN) == BASE  # all addresses are free
