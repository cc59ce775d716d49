"""The search for the largest value that fits: two traces predict the edge, and the next ones are on both sides of it."""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from vramcast.core.errors import CannotEstimate, DoesNotFit, UsageError
from vramcast.core.text import shown

if TYPE_CHECKING:
    from vramcast.estimates.result import Estimate

Steps: TypeAlias = Literal["1", "8", "pow2"]
MOST: Final = 1 << 20  # arbitrary: limit of the search
_SLOW: Final = 3  # arbitrary: traces in a row on one side of the edge
_NEAR: Final = 64  # arbitrary: a value that is that share smaller than one that does not fit
_FLAT: Final = 16  # arbitrary: the next value is at least that share larger where the need did not grow
_SIZE: Final = {"1": 1, "8": 8}


@dataclass(frozen=True, slots=True)
class Ladder:
    """The values among which a search chooses.

    Attributes:
        steps: Each whole number, each multiple of 8, or each power of two.
        most: The largest value.
        values: The only values, ascending; empty: all that `steps` allow.
    """

    steps: Steps = "1"
    most: int = MOST
    values: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.steps not in get_args(Steps):
            raise UsageError(f"steps is {shown(self.steps)}: use one of {', '.join(get_args(Steps))}.")

    def at_most(self, value: int) -> int:
        """Return the largest value of the ladder that is not above a number; 0: none."""
        value = min(value, self.most)
        if self.values:
            place = bisect.bisect_right(self.values, value)
            return self.values[place - 1] if place else 0
        if self.steps == "pow2":
            return 1 << (value.bit_length() - 1) if value > 0 else 0
        return max(value, 0) // _SIZE[self.steps] * _SIZE[self.steps]

    def after(self, value: int) -> int | None:
        """Return the next value of the ladder; None: there is none."""
        if self.values:
            place = bisect.bisect_right(self.values, value)
            return self.values[place] if place < len(self.values) else None
        following = max(2 * value, 1) if self.steps == "pow2" else value + _SIZE[self.steps]
        return following if following <= self.most else None


@dataclass(frozen=True, slots=True)
class TracedSize:
    """The result of a trace at one value.

    Attributes:
        fits: Whether it fits; None: the job refuses the value, as batch normalization refuses a batch of one.
        bound_bytes: Its upper bound; None: unknown.
    """

    fits: bool | None
    bound_bytes: int | None = None


def search(first: int, ladder: Ladder, card_bytes: int, traces: int) -> Generator[int, TracedSize, None]:
    """Yield the values to trace, until both sides of the edge are traced or the number of traces is spent.

    Args:
        first: The first value.
        ladder: The values.
        card_bytes: Size of the card.
        traces: The most traces.
    """
    seen: dict[int, TracedSize] = {}
    value: int | None = ladder.at_most(first) or ladder.after(0)
    while value and len(seen) < traces:
        seen[value] = yield value
        value = _next(seen, ladder, card_bytes, is_last=len(seen) == traces - 1)


def edge(seen: Mapping[int, TracedSize]) -> tuple[int, int | None]:
    """Return the largest traced value below which all fit (0: none), and the smallest that does not (None: none).

    A value that the job refuses counts as too large, unless a larger one fits.
    """
    fitting = [value for value, one in seen.items() if one.fits]
    failing = [
        value for value, one in seen.items() if one.fits is False or (one.fits is None and value > max(fitting, default=0))
    ]
    fails = min(failing, default=None)
    return max((value for value in fitting if fails is None or value < fails), default=0), fails


def fewest(first: int, most: int, card_bytes: int, traces: int) -> Generator[int, TracedSize, None]:
    """Yield numbers of cards to trace, powers of two, until the smallest that fits has a neighbor that does not.

    Args:
        first: The first and smallest number, whose need tells how many cards the parts of the whole would fill.
        most: The largest number.
        card_bytes: Size of the card.
        traces: The most traces.
    """
    seen: dict[int, TracedSize] = {}
    value = first
    while first <= value <= most and value not in seen and len(seen) < traces:
        seen[value] = yield value
        fits, fails = fewest_edge(seen)
        if fits:  # halfway down to the largest that does not fit
            value = 1 << math.isqrt((fails or first // 2) * fits).bit_length() >> 1
        elif len(seen) > 1:
            value = min(value * value, most)
        else:
            filled = -(-first * (seen[first].bound_bytes or 0) // card_bytes)
            value = min(max(1 << (filled - 1).bit_length(), 2 * first), most)


def fewest_edge(seen: Mapping[int, TracedSize]) -> tuple[int, int | None]:
    """Return the smallest traced value that fits (0: none), and the largest below it that does not (None: none)."""
    fits = min((value for value, one in seen.items() if one.fits), default=0)
    return fits, max((value for value, one in seen.items() if not one.fits and (not fits or value < fits)), default=None)


def _next(seen: Mapping[int, TracedSize], ladder: Ladder, card_bytes: int, *, is_last: bool) -> int | None:
    if len(seen) == 1 and ladder.after(0) in seen and next(iter(seen.values())).fits is None:
        return ladder.after(next(iter(seen)))  # a batch of one may be refused, and one of two accepted
    fits, fails = edge(seen)
    lower, last = ladder.after(fits), None if fails is None else ladder.at_most(fails - 1)
    if lower is None or (last is not None and last < lower):  # both sides are known, or there is no larger value
        return None
    guess = _predicted(seen, (fits, fails), card_bytes)
    if fails is not None and fits < fails - 2 * (fails // _NEAR):  # a value that fits comes before the exact edge
        guess = min(guess, fails - fails // _NEAR)
    if fails is None and is_last and guess > lower:  # all so far were too small, and one that does not fit is due
        guess += max(guess // _NEAR, guess - fits)
    guess = max(ladder.at_most(guess), lower)
    return guess if last is None else min(guess, last)


def _predicted(seen: Mapping[int, TracedSize], sides: tuple[int, int | None], card_bytes: int) -> int:
    """Return where a line through two traces reaches the card's size: through the nearest one and another that needs more."""
    fits, fails = sides
    known = {value: one.bound_bytes for value, one in seen.items() if one.bound_bytes}
    last = [*seen.values()]
    if fits and fails and len(seen) > _SLOW and len({one.fits for one in last[-_SLOW:]}) == 1:  # it grows faster than a line
        return math.isqrt(fits * fails)
    if fails is None and len(seen) > 1 and last[-1].bound_bytes == last[-2].bound_bytes:  # it grows in steps
        return fits + max(fits // _FLAT, 2 * (fits - [*seen][-2]))
    nearest, *others = sorted(known, key=lambda value: abs(known[value] - card_bytes)) or [0]
    if fails is None:  # needs grow in steps: values close to each other show none or only one
        others.sort(key=lambda value: abs(value - nearest) * _FLAT < nearest)
    for a, b in ((nearest, other) for other in others):
        if (known[b] - known[a]) * (b - a) > 0:
            return a + (card_bytes - known[a]) * (b - a) // (known[b] - known[a])
    if fails is None:
        return fits * max(2, card_bytes // known[fits] // 2)  # one trace alone: half of what its own size suggests
    return (fits + fails) // 2 if fits or fails not in known else fails * card_bytes // known[fails]


def searched(
    values: Generator[int, TracedSize, None], tried: Callable[[int], Estimate | CannotEstimate], *, is_observed: bool = False
) -> dict[int, TracedSize]:
    """Return what the estimates of all values of a search say about them.

    With `is_observed`, the observed part of a job that no bound covers must fit.
    """
    seen: dict[int, TracedSize] = {}
    value = next(values)
    with contextlib.suppress(StopIteration):
        while True:
            seen[value] = _traced_size(tried(value), is_observed=is_observed)
            value = values.send(seen[value])
    return seen


def _traced_size(one: Estimate | CannotEstimate, *, is_observed: bool) -> TracedSize:
    """Return what an estimate, or the error in its place, says for a search."""
    if isinstance(one, CannotEstimate):
        return TracedSize(False if isinstance(one, DoesNotFit) else None)
    is_room = is_observed and bool(one.doubts) and one.out_of_memory is None and one.upper_bound <= one.card.total_bytes
    return TracedSize(is_room or one.fits(), one.upper_bound)
