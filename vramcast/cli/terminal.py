"""Terminal features: colors, the width, and progress.

Colors appear on a terminal only, unless FORCE_COLOR is set, and never if NO_COLOR is set (no-color.org) or TERM is dumb.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Final, Literal, TextIO, TypeAlias

from vramcast.cli.streams import say

Colour: TypeAlias = Literal["green", "yellow", "red", "dim"]
# spec: ECMA-48, Select Graphic Rendition
_CODES: Final[dict[str, str]] = {"green": "32", "yellow": "33", "red": "31", "dim": "2"}
_TICK_S: Final = 0.5  # arbitrary
_WIPE: Final = "\r\x1b[K"  # spec: ECMA-48, Erase in Line
_BLOCKS: Final = "█▒·"  # characters that an encoding may lack
_WIDTH: Final = 100  # spec: columns of an answer without a terminal


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


def is_interactive() -> bool:
    """Return whether a person can be asked: both stdin and stdout are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def width_of(stream: TextIO) -> int:
    """Return the columns of a terminal, or those of an answer if the stream is none."""
    return shutil.get_terminal_size((_WIDTH, 24)).columns if stream.isatty() else _WIDTH


def wrapped(text: str, stream: TextIO | None) -> str:
    """Return a text wrapped at words to the columns of a terminal; unchanged if the stream is none."""
    if stream is None or not stream.isatty():
        return text
    return "\n".join(textwrap.wrap(text, width_of(stream), break_long_words=False, break_on_hyphens=False))


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
    with tqdm(desc=text, file=screen, leave=False, ncols=columns, ascii=not _shows(_BLOCKS, sys.stderr)) as bar:

        def tell(done: int, wanted: int) -> None:
            bar.total = wanted
            bar.update(done - bar.n)

        yield tell


def _line(text: str) -> None:
    columns = shutil.get_terminal_size().columns
    say(_WIPE + (text if len(text) < columns else text[: columns - 1]), end="")
