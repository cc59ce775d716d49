"""What schedulers' hooks share: the service's answer on one card, options as text, and the request after one too small."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.errors import NoAnswer

_GROWTH_PERCENT: Final = 150  # arbitrary: a second request which most often is enough, and seldom the whole card


class Unanswerable(NoAnswer):
    """The service is there, and has no answer to this question: asking again helps nobody."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One job on one card.

    Attributes:
        id: Of the estimate; "": it is of several that overlap.
        may_run: Whether its point estimate is no larger than the card.
        request_bytes: What to ask for: at most the card.
        process_bytes: The point estimate.
        capacity_bytes: The card.
        verdict: Of the estimate, with its reason, in words.
        steps_ask_for_cards: Whether steps of a batch script ask for whole cards themselves.
    """

    id: str
    may_run: bool
    request_bytes: int
    process_bytes: int
    capacity_bytes: int
    verdict: str = ""
    steps_ask_for_cards: bool = False

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Answer:
        """Return the answer in what `POST /v1/checks` or `POST /v1/scripts` gives.

        Raises:
            NoAnswer: it is no answer.
        """
        try:
            return cls(
                str(found.get("id", "")),
                found["verdict"]["value"] != "does not fit",
                min(int(found["request_bytes"]), int(found["capacity_bytes"])),
                int(found["process_bytes"]),
                int(found["capacity_bytes"]),
                f"{found['verdict']['value']}: {found['verdict'].get('reason', '')}",
                found.get("steps_ask_for_cards") is True,
            )
        except (KeyError, TypeError, ValueError):
            raise NoAnswer("the service's answer is not understood") from None


def value_of(text: str) -> Any:
    """Return the value of an option in an annotation or a batch script: `steps=4` is a number, `optimizer=adamw` a name."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text


def grown(request_bytes: int, card_bytes: int) -> int | None:
    """Return the next request, at most the card; None: it was the whole card already."""
    if request_bytes >= card_bytes:
        return None
    return min(-(-request_bytes * _GROWTH_PERCENT // 100), card_bytes)
