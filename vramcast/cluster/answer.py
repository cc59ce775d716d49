"""Parts shared by the schedulers' hooks: the service's answer for one card, options as text, and the next larger request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.errors import NoAnswer

_GROWTH_PERCENT: Final = 150  # arbitrary: the second request is usually enough, and rarely the whole card


class Unanswerable(NoAnswer):
    """The service is available but has no answer to this request; repeating it does not help."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one job on one card.

    Attributes:
        id: Id of the estimate; "": the answer combines several commands that overlap.
        may_run: Whether the point estimate is no larger than the card.
        request_bytes: Memory to request; at most the card.
        process_bytes: The point estimate.
        capacity_bytes: Memory of the card.
        verdict: Verdict of the estimate, with its reason, in words.
        steps_ask_for_cards: Whether steps of a batch script request whole cards themselves.
        holds_for: The share of jobs below the bound, with its evidence, in words: `98 of 100 jobs like it (...)`.
    """

    id: str
    may_run: bool
    request_bytes: int
    process_bytes: int
    capacity_bytes: int
    verdict: str = ""
    steps_ask_for_cards: bool = False
    holds_for: str = ""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Answer:
        """Return the answer in a response of `POST /v1/checks` or `POST /v1/scripts`.

        Raises:
            NoAnswer: The response is not an answer.
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
                str(found.get("holds_for", "")),
            )
        except (KeyError, TypeError, ValueError):
            raise NoAnswer("the service's response is not in the expected format") from None


def value_of(text: str) -> Any:
    """Return the value of an option in an annotation or a batch script: `steps=4` is a number, `optimizer=adamw` a name."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text


def grown(request_bytes: int, card_bytes: int) -> int | None:
    """Return the next request, at most the card; None: the last one was the whole card."""
    if request_bytes >= card_bytes:
        return None
    return min(-(-request_bytes * _GROWTH_PERCENT // 100), card_bytes)
