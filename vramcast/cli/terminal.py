"""What a terminal shows beside the text: colours, a bar of the card, and what is going on.

Colours stand on a terminal alone, unless FORCE_COLOR is set; never where NO_COLOR is (no-color.org) or TERM is dumb.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Final, Literal, TextIO, TypeAlias

from vramcast.cli.streams import say
from vramcast.core.units import gib

Colour: TypeAlias = Literal["green", "yellow", "red", "dim"]
# spec: ECMA-48, Select Graphic Rendition
_CODES: Final[dict[str, str]] = {"green": "32", "yellow": "33", "red": "31", "dim": "2"}
_WIDTH: Final = 40  # arbitrary: cells of the bar; the numbers beside it fit into 80 columns
_TICK_S: Final = 0.5  # arbitrary
_WIPE: Final = "\r\x1b[K"  # spec: ECMA-48, Erase in Line
# Of the card: held at the peak, up to the bound, free; and what an encoding without these signs shows.
_SIGNS: Final = ("█▒·", "#+.")
_VERDICTS: Final[dict[str, Colour]] = {"fits": "green", "uncertain": "yellow", "does not fit": "red"}


def has_colours(stream: TextIO | None) -> bool:
    """Whether what is written on a stream may be coloured."""
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: Colour, stream: TextIO | None) -> str:
    """Return a text in a colour, where the stream may have one."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if text and has_colours(stream) else text


def card_bar(process_bytes: int, bound_bytes: int | None, card_bytes: int, verdict: str, stream: TextIO) -> str:
    """Return a bar of a card: what the job holds at its peak, how far its bound reaches, and what is free.

    Args:
        process_bytes: The point estimate.
        bound_bytes: The upper bound; None: none holds.
        card_bytes: The card.
        verdict: `fits`, `uncertain` or `does not fit`.
        stream: Where it will be written.
    """
    held, reach, free = _SIGNS[0] if _shows(_SIGNS[0], stream) else _SIGNS[1]
    peak = _cells(process_bytes, card_bytes)
    bound = peak if bound_bytes is None else max(peak, _cells(bound_bytes, card_bytes))
    colour = _VERDICTS[verdict]
    bar = painted(held * peak, colour, stream) + painted(reach * (bound - peak), "yellow", stream)
    bar += painted(free * (_WIDTH - bound), "dim", stream)
    told = f"{gib(process_bytes)}{'' if bound_bytes is None else f', at most {gib(bound_bytes)}'}, of {gib(card_bytes)}"
    return f"[{bar}] {told}: {painted(verdict, colour, stream)}"


def _cells(size_bytes: int, card_bytes: int) -> int:
    """Return how many cells a size fills: one at least, all only of the whole card."""
    return min(_WIDTH, max(1, size_bytes * _WIDTH // card_bytes))


def _shows(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show on stderr what is going on, and for how long, while a person looks at it; the line goes when it is done.

    Limits: nothing else may write on the terminal meanwhile. A training command does, so it has no such line.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    began, done = time.perf_counter(), threading.Event()

    def tick() -> None:
        while not done.wait(_TICK_S):
            _line(f"{text} ... {time.perf_counter() - began:.0f} s")

    _line(f"{text} ...")
    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield
    finally:
        done.set()
        ticking.join()
        say(_WIPE, end="")


@contextmanager
def counted(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr, while a person looks at it, how many of how many are done, and the time to go; it goes when all are.

    Yields:
        What is told how many are done, of how many.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda done, wanted: None
        return
    from tqdm import tqdm

    screen = SimpleNamespace(write=partial(say, end=""))  # what cannot be written is no error
    columns = shutil.get_terminal_size().columns - 1
    with tqdm(desc=text, file=screen, leave=False, ncols=columns, ascii=not _shows(_SIGNS[0], sys.stderr)) as bar:

        def tell(done: int, wanted: int) -> None:
            bar.total = wanted
            bar.update(done - bar.n)

        yield tell


def _line(text: str) -> None:
    columns = shutil.get_terminal_size().columns
    say(_WIPE + (text if len(text) < columns else text[: columns - 1]), end="")
