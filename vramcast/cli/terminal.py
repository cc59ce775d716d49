"""Terminal features: colors, a bar of the card, and progress.

Colors appear on a terminal only, unless FORCE_COLOR is set, and never if NO_COLOR is set (no-color.org) or TERM is dumb.
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
_WIDTH: Final = 40  # arbitrary: cells of the bar; with its numbers it fits into 80 columns
_TICK_S: Final = 0.5  # arbitrary
_WIPE: Final = "\r\x1b[K"  # spec: ECMA-48, Erase in Line
# Parts of the card: held at the peak, up to the bound, free; the second row is for encodings without these characters.
_SIGNS: Final = ("█▒·", "#+.")
_VERDICTS: Final[dict[str, Colour]] = {"fits": "green", "uncertain": "yellow", "does not fit": "red"}


def has_colours(stream: TextIO | None) -> bool:
    """Return whether text written on a stream may be colored."""
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: Colour, stream: TextIO | None) -> str:
    """Return a text in a color, if the stream may have one."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if text and has_colours(stream) else text


def card_bar(process_bytes: int, bound_bytes: int | None, card_bytes: int, verdict: str, stream: TextIO) -> str:
    """Return a bar of a card: the job's peak, the reach of its bound, and the free rest.

    Args:
        process_bytes: The point estimate.
        bound_bytes: The upper bound; None: there is none.
        card_bytes: The memory of the card.
        verdict: `fits`, `uncertain` or `does not fit`.
        stream: The stream that it will be written on.
    """
    held, reach, free = _SIGNS[0] if _shows(_SIGNS[0], stream) else _SIGNS[1]
    peak = _cells(process_bytes, card_bytes)
    bound = peak if bound_bytes is None else max(peak, _cells(bound_bytes, card_bytes))
    colour = _VERDICTS[verdict]
    bar = painted(held * peak, colour, stream) + painted(reach * (bound - peak), "yellow", stream)
    bar += painted(free * (_WIDTH - bound), "dim", stream)
    caption = f"{gib(process_bytes)}{'' if bound_bytes is None else f', at most {gib(bound_bytes)}'}, of {gib(card_bytes)}"
    return f"[{bar}] {caption}: {painted(verdict, colour, stream)}"


def _cells(size_bytes: int, card_bytes: int) -> int:
    """Return the number of cells that a size fills: at least one, and all of them only for the whole card."""
    return min(_WIDTH, max(1, size_bytes * _WIDTH // card_bytes))


def _shows(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show on stderr the current activity and its duration, on a terminal only; erase the line at the end.

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
    """Show on stderr, on a terminal only, how many items are done and the time left; erase the line at the end.

    Yields:
        A function that takes the number of items done and their total.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda done, wanted: None
        return
    from tqdm import tqdm

    screen = SimpleNamespace(write=partial(say, end=""))  # a failed write is no error
    columns = shutil.get_terminal_size().columns - 1
    with tqdm(desc=text, file=screen, leave=False, ncols=columns, ascii=not _shows(_SIGNS[0], sys.stderr)) as bar:

        def tell(done: int, wanted: int) -> None:
            bar.total = wanted
            bar.update(done - bar.n)

        yield tell


def _line(text: str) -> None:
    columns = shutil.get_terminal_size().columns
    say(_WIPE + (text if len(text) < columns else text[: columns - 1]), end="")
