"""The memory that one process of a job requests from a scheduler: bytes of one card, rounded up; more after a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from vramcast.cluster.answer import grown
from vramcast.core.checks import whole
from vramcast.core.errors import RequestRefused, UsageError
from vramcast.core.text import shown
from vramcast.core.units import MIB, gib
from vramcast.estimates.result import Estimate

# arbitrary: few distinct sizes, because Ray keeps a queue and worker processes for each
GRAIN_BYTES: Final = 256 * MIB
# spec: Ray's docs, "Fractional resource requirements": resources have a precision of 0.0001
_SHARES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Request:
    """Memory of one card, for one process of a job; for a job of several ranks, for each rank.

    Attributes:
        size_bytes: Memory to request; at most the card.
        card_bytes: Memory of the card.
        card: Name of the card.
        grain_bytes: `size_bytes` is a multiple of it, or the whole card.
        attempt: Number of this request among the requests of its job.
    Raises:
        UsageError: A number is out of range.
    """

    size_bytes: int
    card_bytes: int
    card: str = "GPU"
    grain_bytes: int = GRAIN_BYTES
    attempt: int = 1

    def __post_init__(self) -> None:
        card_bytes = whole("card_bytes", self.card_bytes, least=1)
        grain_bytes = whole("grain_bytes", self.grain_bytes, least=1)
        size_bytes = whole("size_bytes", self.size_bytes, least=1, most=card_bytes, advice=", the size of the card")
        object.__setattr__(self, "size_bytes", min(-(-size_bytes // grain_bytes) * grain_bytes, card_bytes))

    @classmethod
    def of(cls, estimate: Estimate, size_bytes: int | None = None, *, grain_bytes: int = GRAIN_BYTES) -> Request:
        """Return the request of an estimated job.

        Args:
            estimate: Estimate of the job, on the card that it will run on.
            size_bytes: Memory to request, for example from `vramcast.estimates.adaptive_level.Online.request`; default: the
                upper bound at the estimate's level. A size above the card's, or a job without a bound, requests the whole
                card.
            grain_bytes: Requests are multiples of it.
        Raises:
            RequestRefused: Not even the point estimate fits on the card.
        """
        card = estimate.job.device.name
        if estimate.verdict.value == "does not fit":
            raise RequestRefused(
                f"The job needs {gib(estimate.need().least_bytes)}, but {card} has {gib(estimate.card_bytes)}: it was not "
                "queued. Use a larger card, or make the job smaller (vramcast estimate ... --advise lists ways)."
            )
        if size_bytes is None:
            size_bytes = estimate.card_bytes if estimate.doubts else estimate.upper_bound
        return cls(min(size_bytes, estimate.card_bytes), estimate.card_bytes, card, grain_bytes)

    @property
    def share(self) -> float:
        """The part of the card, rounded up to a multiple of 0.0001, the precision of Ray."""
        parts = -(-self.size_bytes * _SHARES // self.card_bytes)
        # measured: Ray 2.60 truncates: of 0.3228, which times 10,000 is 3227.9999..., it took 0.3227.
        while int(parts / _SHARES * _SHARES) != parts:
            parts += 1
        return parts / _SHARES

    def larger(self) -> Request | None:
        """Return the next larger request after this one was too small; None: it was the whole card."""
        size_bytes = grown(self.size_bytes, self.card_bytes)
        return None if size_bytes is None else replace(self, size_bytes=size_bytes, attempt=self.attempt + 1)

    def whole_card(self) -> Request:
        """Return the same request for the whole card."""
        return replace(self, size_bytes=self.card_bytes)

    def __str__(self) -> str:
        return f"{gib(self.size_bytes)} of {self.card} ({gib(self.card_bytes)})"


# A job's memory: an estimate, a request, or a function of the call's arguments that returns one of them.
Sizing: TypeAlias = "Estimate | Request | Callable[..., Estimate | Request]"


def request_of(sizing: Sizing, arguments: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> Request:
    """Return the request of one call.

    Args:
        sizing: An estimate, a request, or a function of the call's arguments that returns one of them.
        arguments: Positional arguments of the call.
        named: Keyword arguments of the call.
    Raises:
        RequestRefused: The job fits on no card.
        UsageError: `sizing` has another type.
    """
    found = sizing if isinstance(sizing, Estimate | Request) or not callable(sizing) else sizing(*arguments, **(named or {}))
    if isinstance(found, Estimate):
        return Request.of(found)
    if not isinstance(found, Request):
        raise UsageError(
            f"The memory of a job is {shown(found)}, but must be an Estimate, a Request, or a function that returns one."
        )
    return found
