"""The card: what the driver gives, and where."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.errors import UsageError
from vramcast.simulator.card import UNLIMITED_BYTES, AddressPolicy, Card
from vramcast.simulator.rules import MIB

POLICIES: tuple[AddressPolicy, ...] = ("lowest", "fresh", "descending")


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="Address policy 'random' is unknown: use one of lowest, fresh, descending"):
        Card(policy=cast(AddressPolicy, "random"))


def test_memory_is_counted_in_pages_and_the_context_is_gone() -> None:
    card = Card(10 * MIB + 5, context_bytes=3 * MIB)
    assert (card.capacity_bytes, card.free_bytes) == (7 * MIB + 5, 7 * MIB + 5)
    assert card.malloc(3 * MIB) is not None  # two pages
    assert (card.used_bytes, card.free_bytes) == (4 * MIB, 3 * MIB + 5)
    assert card.malloc(2 * MIB + 1) is None  # would be two more
    assert card.malloc(2 * MIB) is not None
    assert card.malloc(1) is None
    assert (card.used_bytes, card.free_bytes) == (6 * MIB, MIB + 5)


def test_what_others_take_is_counted_in_bytes() -> None:
    card = Card(10 * MIB)
    assert card.take(3 * MIB + 1)
    assert not card.take(7 * MIB)
    assert (card.used_bytes, card.free_bytes) == (3 * MIB + 1, 7 * MIB - 1)
    assert card.malloc(8 * MIB) is None
    assert card.malloc(6 * MIB) is not None


def test_a_card_without_an_end_is_never_full() -> None:
    card = Card(10 * MIB, context_bytes=MIB, limited=False)
    assert card.malloc(100 * MIB) is not None
    assert (card.capacity_bytes, card.free_bytes, card.total_bytes) == (UNLIMITED_BYTES, 0, 10 * MIB)


@pytest.mark.parametrize(
    ("policy", "places"),
    [
        # 4, 2 and 6 MiB; the first and the second go back; then 2, 4 and 2 MiB
        ("lowest", [0, 4, 6, 0, 2, 12]),
        ("fresh", [0, 4, 6, 12, 14, 18]),
        ("descending", [-4, -6, -12, -2, -6, -14]),
    ],
)
def test_each_policy_has_its_own_addresses(policy: AddressPolicy, places: list[int]) -> None:
    card = Card(policy=policy)
    addresses = [card.malloc(size * MIB) for size in (4, 2, 6)]
    for address, size in zip(addresses[:2], (4, 2), strict=True):
        assert address is not None
        card.free(address, size * MIB)
    addresses += [card.malloc(size * MIB) for size in (2, 4, 2)]
    base = (1 << 46) + ((1 << 60) if policy == "descending" else 0)
    assert [None if address is None else address - base for address in addresses] == [place * MIB for place in places]


@given(st.sampled_from(POLICIES), st.lists(st.tuples(st.booleans(), st.integers(1, 20 * MIB)), max_size=40))
def test_no_two_ranges_share_an_address_and_what_is_freed_is_free(
    policy: AddressPolicy, requests: list[tuple[bool, int]]
) -> None:
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
    if policy == "lowest":  # all free ranges are one again
        assert card.reserve(1 << 50) == 1 << 46
