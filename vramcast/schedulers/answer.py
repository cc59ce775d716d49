"""What the service says of a job on one card, as schedulers' hooks need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.core.errors import NoAnswer


@dataclass(frozen=True, slots=True)
class Answer:
    """One job on one card.

    Attributes:
        id: Of the estimate.
        fits: Whether its point estimate does.
        request_bytes: What to ask for: at most the card.
        process_bytes: The point estimate.
        capacity_bytes: The card.
    """

    id: str
    fits: bool
    request_bytes: int
    process_bytes: int
    capacity_bytes: int

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Answer:
        """Return the answer in what `POST /v1/checks` gives.

        Raises:
            NoAnswer: it is no answer.
        """
        try:
            return cls(
                str(found["id"]),
                found["verdict"] != "does_not_fit",
                min(int(found["request_bytes"]), int(found["capacity_bytes"])),
                int(found["process_bytes"]),
                int(found["capacity_bytes"]),
            )
        except (KeyError, TypeError, ValueError):
            raise NoAnswer("the service's answer is not understood") from None
