"""The search for the largest batch, with jobs that fit up to a known size."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from vramcast.estimates.sweep import MOST, Tried, search


def searched(largest: int, *args: int, refuses_one: bool = False) -> tuple[int, list[int]]:
    """Return the result of a search and the sizes it tried, if sizes up to `largest` fit."""
    sizes, tried = search(*args), []
    size, _ = next(sizes)
    while True:
        tried.append(size)
        answer: Tried = "refused" if refuses_one and size == 1 else "fits" if size <= largest else "too large"
        try:
            size, _ = sizes.send(answer)
        except StopIteration as end:
            return int(end.value), tried


@given(st.integers(0, MOST))
@example(0)
@example(1)
@example(MOST)
def test_finds_largest_size_in_few_tries(largest: int) -> None:
    found, tried = searched(largest)
    assert found == largest
    assert len(tried) == len(set(tried)) <= 2 * largest.bit_length() + 1


def test_refused_batch_of_one_is_not_too_large() -> None:
    assert searched(12, refuses_one=True)[0] == 12
    assert searched(0, refuses_one=True) == (0, [1, 2])


def test_ends_at_largest_size_of_search() -> None:
    assert searched(10 * MOST)[0] == MOST


@given(st.integers(0, 5000), st.integers(1, 4000))
def test_search_from_another_size_is_exact_to_a_part_and_goes_down_too(largest: int, first: int) -> None:
    found, tried = searched(largest, first, 4000, 100)
    assert found <= largest
    assert min(largest, 4000) - found <= found / 100
    assert (tried[0], max(tried) <= 4000, found in (0, *tried)) == (first, True, True)
    assert len(tried) == len(set(tried))
