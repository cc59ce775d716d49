"""The search for the largest value that fits, with jobs whose bound is known, and the axes of jobs."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.estimates.axes.search import Ladder, Steps, TracedSize, edge, fewest, fewest_edge, search

CARD_BYTES = 10_000


def searched(
    bound_of: Callable[[int], int | None], first: int = 8, ladder: Ladder | None = None, traces: int = 5
) -> dict[int, TracedSize]:
    """Return the values that a search traces; a bound of None stands for a refused value."""
    return traced(search(first, ladder or Ladder(), CARD_BYTES, traces), bound_of)


def traced(values: Generator[int, TracedSize, None], bound_of: Callable[[int], int | None]) -> dict[int, TracedSize]:
    """Return what all values have, by value."""
    seen: dict[int, TracedSize] = {}
    value = next(values)
    while True:
        size_bytes = bound_of(value)
        seen[value] = TracedSize(None if size_bytes is None else size_bytes <= CARD_BYTES, size_bytes)
        try:
            value = values.send(seen[value])
        except StopIteration:
            return seen


# ------------------------------------------------------------------------------------------------ the search
@given(st.integers(0, 5000), st.integers(1, 500), st.integers(1, 4000))
@example(0, 1, 1)
def test_finds_edge_of_line_in_five_traces(fixed: int, slope: int, first: int) -> None:
    seen = searched(lambda value: fixed + slope * value, first)
    value = (CARD_BYTES - fixed) // slope
    assert edge(seen) == (value, value + 1)
    assert len(seen) <= 5


@given(st.integers(1, 3000), st.integers(1, 4000), st.sampled_from([1, 64, 512]))
@example(2715, 1, 512)
def test_more_traces_find_edge_of_any_growing_need(largest: int, first: int, rounded: int) -> None:
    seen = searched(lambda value: -(-value * CARD_BYTES // largest // rounded) * rounded, first, traces=60)
    fits, fails = edge(seen)
    assert fails == fits + 1


@given(st.integers(1, 100_000), st.integers(0, 9_000), st.integers(0, 3))
@example(9_000, 0, 0)  # one card is enough
@example(20_000_000, 0, 0)  # none is
def test_finds_fewest_cards(shared: int, own: int, first: int) -> None:
    seen = traced(fewest(1 << first, 1024, CARD_BYTES, 12), lambda cards: own + shared // cards)
    enough = next((cards for cards in (1 << at for at in range(first, 11)) if own + shared // cards <= CARD_BYTES), 0)
    assert len(seen) <= 7
    assert fewest_edge(seen) == (enough, None if enough == 1 << first else enough // 2 or 1024)


@pytest.mark.parametrize(("steps", "value", "following"), [("1", 99, 100), ("8", 96, 104), ("pow2", 64, 128)])
def test_chooses_among_values_of_ladder(steps: Steps, value: int, following: int) -> None:
    seen = searched(lambda size: 101 * size, 24, Ladder(steps))
    assert (edge(seen), len(seen) <= 5) == ((value, following), True)


def test_ends_at_largest_possible_value() -> None:
    assert edge(searched(lambda size: size, 4, Ladder(most=100))) == (100, None)
    assert edge(searched(lambda size: 1300 * size, 12, Ladder(values=(1, 2, 3, 4, 6, 12)))) == (6, 12)


def test_last_trace_is_on_the_other_side() -> None:
    seen = searched(lambda size: int(1_000 * size**0.5), 1)
    assert (len(seen), edge(seen)) == (5, (sorted(seen)[-2], max(seen)))


def test_refused_batch_of_one_is_not_too_large() -> None:
    assert edge(searched(lambda size: None if size == 1 else 100 * size, 1))[0] == 100
    assert edge(searched(lambda size: None, 1)) == (0, 1)


def test_smaller_value_that_does_not_fit_limits_the_answer() -> None:
    seen = {4: TracedSize(True, 1), 8: TracedSize(False, 20_000), 16: TracedSize(True, 9_000)}
    assert edge(seen) == (4, 8)


def test_ladder_without_such_steps_is_rejected() -> None:
    with pytest.raises(UsageError, match="use one of 1, 8, pow2"):
        Ladder("3")  # type: ignore[arg-type]


@pytest.mark.parametrize("jump", [0, 300, 900])
def test_close_value_that_fits_comes_before_exact_edge(jump: int) -> None:
    def bound(value: int) -> int:
        return 100 + value + (jump if value > 9_000 else 0)

    fits, fails = edge(searched(bound, 500))
    largest = max(value for value in range(1, 10_000) if bound(value) <= CARD_BYTES)
    assert fails is not None
    assert (largest - fits <= largest / 32, fails > largest) == (True, True)
