"""The cause of an out-of-memory error: the first rule of `FullCard.cause` that holds for the card when a request failed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from vramcast.core.brief import brief
from vramcast.core.units import GIB, gib

CAUSES: Final = (
    "one request larger than the card", "fragmentation", "growth", "another process", "own memory limit",
    "context and libraries", "peak in evaluation", "peak in checkpoint", "peak at one step", "too large", "main memory",
)  # fmt: skip
LARGER, FRAGMENTATION, GROWTH, OTHERS, LIMIT, OUTSIDE, EVALUATION, CHECKPOINT, STEP, TOO_LARGE, HOST = CAUSES
CONTEXT_BYTES: Final = 2 * GIB  # measured: contexts with all libraries take at most 1.7 GiB (vramcast/hardware/cards.toml)
HUGE_BYTES: Final = 1 << 60  # spec: c10/cuda/CUDACachingAllocator.cpp: a request of "more than 1EB"
_OTHERS_SHARE: Final = 10  # arbitrary: other processes count from a tenth of the card on; a desktop takes less
_SETTLED: Final = 3  # arbitrary: after three steps, a loop that keeps nothing has had its largest peak
# arbitrary: names of the functions in which people and frameworks evaluate and save
_PLACES: Final = {
    EVALUATION: re.compile(r"(^|_)(eval|evaluat\w*|validat\w*|valid|val|test)(_|$)"),
    CHECKPOINT: re.compile(r"^_?save(_(?!for_backward|on_cpu)|$)|(^|_)(state_dict|save_checkpoint)$"),
}


@brief
@dataclass(frozen=True, slots=True)
class FullCard:
    """The card when a request failed, in bytes; None: unknown.

    `holes_bytes` lie beside live blocks and cannot be returned, `outside_bytes` is context and libraries, `kept_bytes` what the
    `steps` before kept, `place` an EVALUATION or CHECKPOINT around the request. `packs`: without any gap, the job would fit.
    """

    request_bytes: int = 0
    total_bytes: int | None = None
    free_bytes: int = 0
    live_bytes: int = 0
    holes_bytes: int = 0
    outside_bytes: int | None = None
    others_bytes: int | None = None
    allowed_bytes: int | None = None
    kept_bytes: int = 0
    steps: int = 0
    place: str = ""
    packs: bool = True

    def cause(self) -> tuple[str, str]:
        """Return the cause and the fact that decides it."""
        asked, free, holes, kept = self.request_bytes, self.free_bytes, self.holes_bytes, self.kept_bytes
        outside, others, total = self.outside_bytes or 0, self.others_bytes or 0, self.total_bytes
        room = self.live_bytes + holes + free if total is None else total - outside
        most = f"the {gib(room)} that the process can ever have" if room else "any card has"
        what, short = f"a request of {gib(asked)}", f"{gib(max(asked - free, 0))} too large" if room else "too large"
        rules = (
            (LARGER, asked > (room or HUGE_BYTES - 1), f"{what} is more than {most}"),
            (LIMIT, self.allowed_bytes is not None and asked <= free,
             f"it may take {gib(self.allowed_bytes or 0)}, and {gib(free)} of the card were free"),
            (OTHERS, others >= max(holes, (total or 0) // _OTHERS_SHARE, 1) and asked <= free + others,
             f"others held {gib(others)}; without them, {what} fits"),
            (GROWTH, kept >= max(asked - free, holes, 1), f"{self.steps:,} steps kept {gib(kept)}"),
            (FRAGMENTATION, self.packs and asked <= free + holes,
             f"{gib(free + holes)} were free, but in pieces too small for {what}"),
            (OUTSIDE, outside >= CONTEXT_BYTES and asked <= free + outside,
             f"{gib(outside)} of the process lie outside PyTorch's allocator; without them, {what} fits"),
            (self.place, bool(self.place), f"{what} there was {short}; training alone ran"),
            (STEP, self.steps >= _SETTLED, f"{what} was {short}; the {self.steps:,} steps before it needed less"),
        )  # fmt: skip
        return next(((cause, why) for cause, holds, why in rules if holds), (TOO_LARGE, f"{what} was {short}"))


def place_of(functions: Iterable[str]) -> str:
    """Return EVALUATION or CHECKPOINT for the functions of a stack, innermost first, or else ""."""
    return next((cause for name in functions for cause, pattern in _PLACES.items() if pattern.search(name)), "")
