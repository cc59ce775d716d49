"""What a job would take if it were changed, one row a change, as `vramcast.advise` returns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.plain import to_plain
from vramcast.core.units import gib
from vramcast.hardware.cards import DEVICES

_NAME_WIDTH: Final = 34  # arbitrary
_CARD_WIDTH: Final = 20  # arbitrary: the longest key of a card
_PRICE_WIDTH: Final = 96  # arbitrary: longer ones, which name many blocks, are cut in the text
_NOTES: Final = (
    "bounds of the pool and of swapping take a plan's height for reserved memory; only a program which follows the plan has it",
    "8-bit optimizers are not in torch.optim and not traced here: pass one as vramcast.estimate(optimizer=...)",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One variant of the job; sizes in bytes, None where it could not be traced.

    Attributes:
        name: What is changed.
        price: What it costs in time or exactness, as far as it is known.
        reserved: Peak of segments, or the height of a plan.
        bound: The process peak's bound at the estimate's level.
        fits_card: Whether it fits on the card which was asked for, at that level.
        fits: The same for each known device.
        reason: Why it could not be traced; None: it was.
    """

    name: str
    price: str
    reserved: int | None = None
    bound: int | None = None
    fits_card: bool | None = None
    fits: dict[str, bool] | None = None
    reason: str | None = None

    @property
    def smallest_device(self) -> str | None:
        """The known device with the least memory on which it fits; None: on none, or unknown."""
        fitting = [key for key, fits in (self.fits or {}).items() if fits]
        return min(fitting, key=lambda key: DEVICES[key].total_bytes, default=None)


@dataclass(frozen=True, slots=True)
class Advice:
    """The variants of one job.

    Attributes:
        rows: By bound, the least first; those which could not be traced come last.
        level: Of the bounds.
    """

    rows: tuple[Row, ...]
    level: float

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the rows as JSON."""
        return to_plain(self.rows)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        heading = f"{'advice':<{_NAME_WIDTH}} {'reserved':>11} {'bound':>11}   {'card':<5} {'fits from':<{_CARD_WIDTH}} price"
        lines = [heading]
        for row in self.rows:
            if row.reserved is not None and row.bound is not None:
                sizes = f"{gib(row.reserved):>11} {gib(row.bound):>11}"
                fits = f"{'fits' if row.fits_card else 'no':<5} {row.smallest_device or 'none':<{_CARD_WIDTH}}"
                lines.append(f"{row.name:<{_NAME_WIDTH}} {sizes}   {fits} {_cut(row.price)}")
        untraced = [f"not traced: {row.name}: {row.reason}" for row in self.rows if row.reason is not None]
        level = f"bounds are at level {self.level:g}; the job's own card, and the smallest known one on which a row fits"
        return "\n".join([*lines, *untraced, *(f"note: {text}" for text in (level, *_NOTES))])


def _cut(text: str) -> str:
    return text if len(text) <= _PRICE_WIDTH else f"{text[: _PRICE_WIDTH - 4].rpartition(' ')[0]} ..."
