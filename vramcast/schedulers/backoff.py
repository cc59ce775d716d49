"""How much more a job asks for after it ran out of memory."""

from __future__ import annotations

from typing import Final

_GROWTH_PERCENT: Final = 150  # arbitrary: a second request which most often is enough, and seldom the whole card


def grown(request_bytes: int, card_bytes: int) -> int | None:
    """Return the next request, at most the card; None: it was the whole card already."""
    if request_bytes >= card_bytes:
        return None
    return min(-(-request_bytes * _GROWTH_PERCENT // 100), card_bytes)
