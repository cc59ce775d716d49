"""The changes that let a job live in the allocator simulator, cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.core.units import MIB, gib
from vramcast.explanations.answer import ProvedChange
from vramcast.hardware.cards import DEVICES
from vramcast.simulator.card import Card
from vramcast.simulator.engine import play
from vramcast.simulator.requests import Requests
from vramcast.simulator.settings import Settings
from vramcast.simulator.what_if import min_feasible

# arbitrary: what people try first
_SETTINGS: Final = (
    "expandable_segments:True", "max_split_size_mb:512", "max_split_size_mb:128", "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.95",
)  # fmt: skip
EXPANDABLE: Final = f"PYTORCH_CUDA_ALLOC_CONF={_SETTINGS[0]}"
NO_LIMIT: Final = "no memory fraction, no MPS limit"
ALONE: Final = "no other process on the card"


def replayed(
    asked: Requests, own: Settings, size_bytes: int, total_bytes: int | None, others: list[tuple[str, Requests, Settings, int]]
) -> Iterator[ProvedChange]:
    """Yield the changes with which all requests are served: settings, then `others`, then more than `size_bytes` of memory."""
    rows = []
    for text in _SETTINGS:
        with suppress(UsageError):  # another release of torch, or a setting that is there already
            settings = Settings.parse(",".join(filter(None, (str(own).replace("default", ""), text))), asked.rules)
            rows += [(f"PYTORCH_CUDA_ALLOC_CONF={settings}", asked, settings, size_bytes)] * (settings != own)
    rows += others
    if (least_bytes := min_feasible(asked, own) or 0) > size_bytes:
        rows.append((larger_card(least_bytes - size_bytes, total_bytes), asked, own, least_bytes))
    for name, requests, settings, card_bytes in rows:
        if (peaks := served(requests, settings, card_bytes)) is not None:
            yield ProvedChange(name, "replayed", peaks)


def served(requests: Requests, settings: Settings, card_bytes: int) -> dict[str, int] | None:
    """Return the peaks of requests on a card; None if one of them fails."""
    found = play(requests, settings, Card(card_bytes), columns=False)
    peaks = {"allocated": found.statistics.allocated.peak, "reserved": found.statistics.reserved.peak}
    return peaks if found.stopped_at is None else None


def larger_card(more_bytes: int, total_bytes: int | None) -> str:
    """Return the smallest known card with so much more memory than the job's, or only the amount."""
    cards = [one for one in DEVICES.values() if one.total_bytes >= (total_bytes or 0) + more_bytes and " MIG " not in one.name]
    if total_bytes is None or not cards:
        return f"{gib(max(more_bytes, MIB))} more on the card"
    return f"a card of {gib(total_bytes + more_bytes)}: {min(cards, key=lambda one: one.total_bytes).key}"
