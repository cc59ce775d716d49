"""List the known cards: the built-in ones and your site's (VRAMCAST_SITE).

vramcast devices
vramcast devices h100
vramcast devices --json
"""

from __future__ import annotations

import argparse

from vramcast.cli.streams import answer_as
from vramcast.core.plain import to_plain
from vramcast.core.units import gib
from vramcast.hardware.cards import device, every_card
from vramcast.hardware.cuda_support import installed_cuda, is_dropped
from vramcast.hardware.device import Device

_TOLD = ("key", "name", "total_bytes", "compute_capability", "sm_count", "assumed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument("part", nargs="?", metavar="PART", help="part of the card's name (default: all cards)")


def main(options: argparse.Namespace) -> int:
    """Run the verb; return 0. A wrong PART raises a UsageError."""
    found = _cards(options.part or "") or [device(options.part)]
    values = {"devices": [{name: to_plain(getattr(card, name)) for name in _TOLD} for card in found]}
    answer_as(options.json, values, lambda: "\n".join(map(_line, found)))
    return 0


def _line(card: Device) -> str:
    major, minor = card.compute_capability
    dropped = f" (not with CUDA {installed_cuda()})" if is_dropped(card) else ""
    return f"{card.key:<20}{gib(card.total_bytes):>12}   sm_{major}{minor:<4} {card.sm_count:>4} SMs   {card.name}{dropped}"


def _cards(part: str) -> list[Device]:
    wanted = part.lower().replace(" ", "")
    return [card for card in every_card() if wanted in f"{card.key} {card.name}".lower().replace(" ", "")]
