"""Completion of command lines for bash, zsh and fish: `eval "$(register-python-argcomplete vramcast)"`."""

from __future__ import annotations

import argparse
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.hardware.cards import DEVICES, every_card
from vramcast.jobs.targets import REGISTRIES, names_of

_CARDS: Final = {"--on", "--cards"}


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and end this process; return if argcomplete is not installed."""
    try:
        from argcomplete import autocomplete
        from argcomplete.completers import FilesCompleter
    except ImportError:
        return

    class Values(FilesCompleter):
        """A completer for cards and targets, and for files elsewhere."""

        def __call__(self, prefix: str, **settings: Any) -> list[str]:
            action: argparse.Action = settings["action"]
            if action.dest == "target":
                return targets(prefix)
            return cards(prefix) if _CARDS & set(action.option_strings) else super().__call__(prefix, **settings)

    autocomplete(parser, default_completer=Values())


def cards(prefix: str) -> list[str]:
    """Return the cards whose keys begin with a prefix, the site's included; ignore a site file that is wrong."""
    try:
        known = every_card()
    except UsageError:  # reported when the verb runs, not at a Tab
        known = list(DEVICES.values())
    return [card.key for card in known if card.key.startswith(prefix.lower())]


def targets(prefix: str) -> list[str]:
    """Return the registries, or the models of one, that begin with a prefix; the shell itself completes files."""
    registry, colon, name = prefix.partition(":")
    if not colon:
        return [f"{one}:" for one in REGISTRIES if one.startswith(prefix)]
    if registry not in REGISTRIES:
        return []
    try:
        return [f"{registry}:{one}" for one in names_of(registry) if one.startswith(name)]
    except UsageError:  # its package is not installed
        return []
