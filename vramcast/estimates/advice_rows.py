"""`Advice`: the variants of a job, one row per change, as `vramcast.advise` returns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.brief import brief
from vramcast.core.plain import to_plain
from vramcast.core.units import gib
from vramcast.estimates.bounds.support import jobs_below
from vramcast.hardware.cards import DEVICES

_NAME_WIDTH: Final = 34  # arbitrary
_CARD_WIDTH: Final = 20  # arbitrary: the longest key of a card
_FITS: Final = {True: "fits", False: "no", None: "?"}
_PRICE_WIDTH: Final = 96  # arbitrary: longer prices, which name many blocks, are cut in the text
_NOTES: Final = (
    "bounds of the pool and of swapping use a plan's height as reserved memory, which needs a program that follows the plan",
    "8-bit optimizers are not traced here: give --optimizer adamw_8bit (in Python, optimizer=)",
)


@brief
@dataclass(frozen=True, slots=True)
class Row:
    """One variant of the job; sizes are in bytes, or None if it could not be traced.

    Attributes:
        name: The change.
        price: Its known cost in time or exactness.
        reserved: Peak of segments in bytes, or the height of a plan.
        bound: Bound of the process peak in bytes, at the estimate's level.
        fits_card: Whether the variant fits on the job's card at that level; None: unknown, or no card was named.
        fits: Whether it fits at that level, by known device.
        reason: Reason why it could not be traced; None if it was.
        kv_cache_tokens, max_concurrency: Of a serving engine; None for other jobs, and without a KV cache.
        how: The setting or line with which a user makes the change in a command's program; None: it is known from the name.
        saves_bytes: The process peak without the change less that with it, of a command; None: unknown.
        verdict: The verdict on the card, of a command; None: no card was named, or there is no estimate.
    """

    name: str
    price: str
    reserved: int | None = None
    bound: int | None = None
    fits_card: bool | None = None
    fits: dict[str, bool] | None = None
    reason: str | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    how: str | None = None
    saves_bytes: int | None = None
    verdict: str | None = None

    @property
    def smallest_device(self) -> str | None:
        """The smallest known device on which the variant fits; None if there is none, or it is unknown."""
        fitting = [key for key, fits in (self.fits or {}).items() if fits]
        return min(fitting, key=lambda key: DEVICES[key].total_bytes, default=None)


@brief
@dataclass(frozen=True, slots=True)
class Advice:
    """The variants of one job, as `vramcast.advise` returns them; `print(advice)` shows a table.

    Attributes:
        rows: The variants by bound, smallest first; those that could not be traced come last. A row has `name`, `price`,
            `reserved` and `bound` in bytes, `fits_card`, `fits` by device, `smallest_device`, and `reason` if it could not be
            traced.
        level: Confidence level of the bounds, in (0, 1).
        is_of_engine: Whether the job is a serving engine, whose rows have tokens and no bounds; the most tokens come first.
        is_ranked: Whether the job is a command: what fits comes first, from the cheapest change on.

    Example:
        >>> bounds = [row.bound for row in advice.rows if row.bound is not None]
        >>> bounds == sorted(bounds), advice.level in (0.9, 0.95)
        (True, True)
    """

    rows: tuple[Row, ...]
    level: float
    is_of_engine: bool = False
    is_ranked: bool = False

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as JSON values.

        Returns:
            A dict for each row, with its attributes and its name as `change`; sizes in bytes.

        Example:
            >>> advice.to_dicts()[0]["name"] == advice.rows[0].name
            True
        """
        return [{**to_plain(row), "change": row.name} for row in self.rows]

    def __str__(self) -> str:
        if self.is_of_engine:
            return self._of_engine()
        heading = f"{'advice':<{_NAME_WIDTH}} {'reserved':>11} {'bound':>11}   {'card':<5} {'fits from':<{_CARD_WIDTH}} price"
        lines = [heading]
        rows = self.rows if self.is_ranked else sorted(self.rows, key=lambda row: not row.price.startswith("none"))
        for row in rows:  # what costs nothing comes first
            if row.reserved is not None and row.bound is not None:
                sizes = f"{gib(row.reserved):>11} {gib(row.bound):>11}"
                fits = f"{_FITS[row.fits_card]:<5} {row.smallest_device or 'none':<{_CARD_WIDTH}}"
                lines.append(f"{row.name:<{_NAME_WIDTH}} {sizes}   {fits} {_cut(row.price)}")
        untraced = [f"not traced: {row.name}: {row.reason}" for row in self.rows if row.reason is not None]
        hows = [f"how: {row.name}: {row.how}" for row in self.rows if row.how is not None]
        level = (
            f"bounds are for {jobs_below(self.level)}; 'card' is the job's own, 'fits from' the smallest known card that fits"
        )
        notes = (level,) if self.is_ranked else (level, *_NOTES)
        return "\n".join([*lines, *hows, *untraced, *(f"note: {text}" for text in notes)])

    def _of_engine(self) -> str:
        lines = [f"{'advice':<{_NAME_WIDTH}} {'tokens':>11} {'requests':>11}   {'card':<5} price"]
        for row in self.rows:
            if row.reason is not None:
                lines.append(f"not traced: {row.name}: {row.reason}")
                continue
            tokens = "none" if row.kv_cache_tokens is None else f"{row.kv_cache_tokens:,}"
            requests = "none" if row.max_concurrency is None else f"{row.max_concurrency:.2f}"
            lines.append(f"{row.name:<{_NAME_WIDTH}} {tokens:>11} {requests:>11}   {_FITS[row.fits_card]:<5} {_cut(row.price)}")
        return "\n".join([*lines, "note: tokens in the KV cache, and requests of the longest length at once"])


def _cut(text: str) -> str:
    return text if len(text) <= _PRICE_WIDTH else f"{text[: _PRICE_WIDTH - 4].rpartition(' ')[0]} ..."
