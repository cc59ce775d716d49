"""The known cards and their names: those of cards.toml, and a site's own.

`VRAMCAST_SITE` names a site's file. A file with a single card may also replace a card's name (`--on my-card.toml`).
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from vramcast.core.checks import whole
from vramcast.core.errors import UsageError
from vramcast.core.text import shorten, shown
from vramcast.core.units import gib, parse_bytes
from vramcast.hardware.card_file import CardFile, parsed
from vramcast.hardware.card_names import CardName, unknown
from vramcast.hardware.device import SMALLEST_BYTES, Device, squeezed

SITE_VARIABLE: Final = "VRAMCAST_SITE"
ENDING: Final = ".toml"
_BUILT_IN: Final = Path(__file__).with_name("cards.toml")
_MOST_FILE_BYTES: Final = 2**20  # arbitrary: thousands of rows
_MOST_PATH: Final = 100  # arbitrary: characters of a path in a message


# ------------------------------------------------------------------------------------------------ files
@functools.cache
def built_in() -> CardFile:
    """Return the parsed cards.toml, which is read once."""
    return parsed(_BUILT_IN.read_bytes(), _BUILT_IN, {})


def site_file() -> CardFile | None:
    """Return the parsed file that $VRAMCAST_SITE names; None if it is not set.

    Raises:
        UsageError: The file cannot be read, or a field is wrong; the message names file and field.
    """
    path = os.environ.get(SITE_VARIABLE)
    return read(path) if path else None


def read(path: str | os.PathLike[str]) -> CardFile:
    """Return a parsed site file, cached in memory until it changes.

    Raises:
        UsageError: See `site_file`.
    """
    file = Path(path)
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"The site file '{shorten(str(path), _MOST_PATH)}' cannot be read: {reason}.") from None
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_FILE_BYTES:
        raise UsageError(f"The site file '{path}' is not a regular file of at most {_MOST_FILE_BYTES} bytes: give a TOML file.")
    return _read(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read(path: Path, changed_ns: int, size_bytes: int) -> CardFile:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The site file '{path}' cannot be read: {error.strerror}.") from None
    return of_site(data, path)


def of_site(data: bytes, path: Path) -> CardFile:
    """Parse a site's file; its cards may be like those of cards.toml.

    Raises:
        UsageError: See `site_file`.
    """
    return parsed(data, path, built_in().tables)


def card_of(path: str) -> Device:
    """Return the one card of a file.

    Raises:
        UsageError: See `site_file`; or the file has no card, several cards, or contexts.
    """
    found = read(path)
    if len(found.cards) != 1 or found.contexts:
        raise UsageError(
            f"'{path}' has {len(found.cards)} cards and {len(found.contexts)} contexts: a file for a device must have "
            f"exactly one [[card]]; {SITE_VARIABLE} names the site's own file."
        )
    return next(iter(found.cards.values()))


# ------------------------------------------------------------------------------------------------ cards
class _BuiltIn(Mapping[str, Device]):
    """The cards of cards.toml by key, read at the first access."""

    def __getitem__(self, key: str) -> Device:
        return built_in().cards[key]

    def __iter__(self) -> Iterator[str]:
        return iter(built_in().cards)

    def __len__(self) -> int:
        return len(built_in().cards)


DEFAULT: Final = "h200"  # arbitrary: the card of an estimate for which none is named
DEVICES: Final[Mapping[str, Device]] = _BuiltIn()


def every_card() -> list[Device]:
    """Return the site's own cards, then those of cards.toml.

    Raises:
        UsageError: See `site_file`.
    """
    site = site_file()
    return [*(site.cards.values() if site is not None else ()), *DEVICES.values()]


def device(key: str) -> Device:
    """Return a card by name.

    Args:
        key: A key of `DEVICES` or of the site's cards, or another name of the card, in any case (`a100`, `rtx 4090`,
            `NVIDIA A100-SXM4-80GB`, Slurm's `gpu:a100:2`); or the path of a file with one card (`my-card.toml`).

    Returns:
        The card, with its size in bytes and its properties.

    Raises:
        UsageError: There is no such card (the message lists related ones, and how to give another), or a file is wrong.

    Example:
        >>> vramcast.devices.device("A100").key
        'a100-40gb'
    """
    if not isinstance(key, str):
        raise UsageError(f"device is {shown(key)}: give a card's name, one of {', '.join(DEVICES)}.")
    if key.endswith(ENDING):
        return card_of(key)
    site = site_file()
    files = [built_in()] if site is None else [site, built_in()]  # the site's own cards first
    squeezed_key = squeezed(key)
    for file in files:
        if squeezed_key in file.names:
            return file.cards[file.names[squeezed_key]]
    cards = [card for file in reversed(files) for card in file.cards.values()]  # a site's card may have an inherited name
    name = CardName.of(key)
    found = next((card for card in cards if name.means(card)), None)
    if found is None:
        raise UsageError(unknown(key, cards))
    return found


# ------------------------------------------------------------------------------------------------ sizes
def checked_card_bytes(size: object) -> int:
    """Return the size of a card in bytes, as text (`12GiB`) or as a number.

    Raises:
        UsageError: It is neither, or smaller than any card.
    """
    size_bytes = parse_bytes(size) if isinstance(size, str) else whole("The card's memory", size)
    if size_bytes < SMALLEST_BYTES:
        raise UsageError(
            f"The card's memory is {size_bytes} bytes, but no card has less than {gib(SMALLEST_BYTES)}: "
            "add a unit, for example 12GiB."
        )
    return size_bytes


def card_bytes(text: str) -> int:
    """Return the size in bytes of a card given by its name (`rtx4090`) or by its size (`12GiB`).

    Raises:
        UsageError: It is neither; the message lists the known cards when `text` looks like a name.
    """
    text = text.strip()
    if not text[:1].isdigit() or text.endswith(ENDING):
        return device(text).total_bytes
    # A size with a unit is not checked further: a history may be played on a card of any size.
    return checked_card_bytes(text) if text.isdigit() else parse_bytes(text)
